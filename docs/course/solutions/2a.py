import numpy as np


def online(q, k, v, tile):
    m, l, acc = -np.inf, 0.0, np.zeros(v.shape[1])
    for at in range(0, len(k), tile):
        s = k[at : at + tile] @ q
        m_new = max(m, s.max())
        c = np.exp(m - m_new)
        p = np.exp(s - m_new)
        l = l * c + p.sum()
        acc = acc * c + p @ v[at : at + tile]
        m = m_new
    return acc / l
