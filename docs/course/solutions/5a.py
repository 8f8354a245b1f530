def reads(S, D, rows, keys):
    total = 0
    for first in range(0, S, rows):
        seen = min(first + rows, S)  # keys that the last query of the tile sees
        tiles = (seen + keys - 1) // keys
        total += min(tiles * keys, S) * 2 * D
    return total
