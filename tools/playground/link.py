#!/usr/bin/env python3
"""link.py FILE.attn [PANE]: prints the link that opens the file in the playground.

The format is share.js's: `#s=` + base64url(deflate-raw(JSON)), where the JSON is {"source": text, "pane": name, "sizes": {name: number}}.
PLAYGROUND is the address of the page; by default where `make playground` puts it, seen from a folder of docs/. The course and the gallery
make their links here, and their tests read them back.
"""

import base64
import json
import os
import sys
import zlib

BASE = os.environ.get("PLAYGROUND", "../../build/playground/index.html")


def link(source, pane=None, sizes=None):
    state = {"source": source, **({"pane": pane} if pane else {}), **({"sizes": sizes} if sizes else {})}
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = deflate.compress(json.dumps(state, ensure_ascii=False, separators=(",", ":")).encode()) + deflate.flush()
    return f"{BASE}#s={base64.urlsafe_b64encode(packed).decode().rstrip('=')}"


def state(url):
    """What a link opens. Two versions of zlib may pack the same text differently, so links are compared by this."""
    text = url.partition("#s=")[2]
    return json.loads(zlib.decompress(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), -15))


def same(a, b):
    return a.partition("#")[0] == b.partition("#")[0] and state(a) == state(b)


if __name__ == "__main__":
    print(link(open(sys.argv[1], encoding="utf-8").read(), *sys.argv[2:3]))
