"""Takes single files out of a large Debian package without fetching it all: runtimes.py URL NAME OUTPUT. A NAME that
ends with / is that of a folder, whose files come into the folder OUTPUT.

A .deb is an ar archive whose data.tar.xz consists of blocks that can be unpacked one by one; the index at its end
(the .xz file format, tukaani.org/xz/xz-file-format.txt, 4.3) says where they are. Only the blocks with the archive's
headers and with the wanted file are fetched.
"""

import functools
import lzma
import os
import sys
import urllib.request


def get(url, start, size):
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-{start + size - 1}"})
    with urllib.request.urlopen(request, timeout=60) as r:
        data = r.read()
    if r.status != 206 or len(data) != size:
        raise SystemExit(f"{url}: status {r.status}, {len(data)} bytes where a part of {size} was asked for")
    return data


def number(data, at):
    """A multibyte integer of .xz, and the position behind it."""
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


class Xz:
    """The unpacked bytes of an .xz stream at url, start to end."""

    def __init__(self, url, start, end):
        self.url, self.blocks = url, []
        index_bytes = (int.from_bytes(get(url, end - 8, 4), "little") + 1) * 4
        index = get(url, end - 12 - index_bytes, index_bytes)
        count, at = number(index, 1)
        where, offset = start + 12, 0
        for _ in range(count):
            packed, at = number(index, at)
            size, at = number(index, at)
            self.blocks.append((offset, size, where, packed))
            where, offset = where + (packed + 3) // 4 * 4, offset + size

    @functools.lru_cache(maxsize=4)
    def block(self, i):
        _, size, where, packed = self.blocks[i]
        data = get(self.url, where, packed)
        # Filters other than LZMA2 alone would need their own reading of the block's header; dpkg uses none.
        raw = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 28}])
        return raw.decompress(data[(data[0] + 1) * 4 :], size)

    def read(self, at, size):
        out = b""
        for i, (offset, length, _, _) in enumerate(self.blocks):
            if offset < at + size and at < offset + length:
                out += self.block(i)[max(at - offset, 0) : at + size - offset]
        return out


def main(url, name, output):
    at = 8
    while True:  # members of the .deb
        head = get(url, at, 60)
        size = int(head[48:58])
        if head.startswith(b"data.tar.xz"):
            break
        at += 60 + size + size % 2
    tar, at, found = Xz(url, at + 60, at + 60 + size), 0, False
    while True:  # files of data.tar
        head = tar.read(at, 512)
        path, size = head[:100].rstrip(b"\0").decode(), int(head[124:136].rstrip(b"\0 ") or b"0", 8)
        _, inside, rest = path.partition("/" + name)
        if found and (not inside or not path):
            return  # files of a folder are in a row
        if not path:
            raise SystemExit(f"{url} has no file {name}")
        if inside and (name.endswith("/") or not rest):
            to = os.path.join(output, rest) if name.endswith("/") else output
            if path.endswith("/"):
                os.makedirs(to, exist_ok=True)
            else:
                with open(to, "wb") as f:
                    f.write(tar.read(at + 512, size))
            if not name.endswith("/"):
                return
            found = True
        at += 512 + (size + 511) // 512 * 512


if __name__ == "__main__":
    main(*sys.argv[1:])
