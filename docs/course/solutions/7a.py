import numpy as np


def merge(a, b):
    (m_a, l_a, acc_a), (m_b, l_b, acc_b) = a, b
    m = max(m_a, m_b)
    if m == -np.inf:  # neither has a key
        return a
    c_a, c_b = np.exp(m_a - m), np.exp(m_b - m)
    return m, l_a * c_a + l_b * c_b, acc_a * c_a + acc_b * c_b
