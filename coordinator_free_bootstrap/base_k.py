"""The edges of the Simple Base-(k+1) Graph: of all rounds together, in each of which a peer has k partners. Pure.

The peers are divided by the digits of their number in base k + 1: into parts of a * (k + 1)^p peers, a at most k. In a part peers
meet whose ids differ in one digit, as in a hypercube. Then each peer of the later parts meets one peer of every block of
(k + 1)^p peers of the part, and those that are left meet in groups of k + 1.

Source: Yuki Takezawa, Ryoma Sato, Han Bao, Kenta Niwa and Makoto Yamada, "Beyond Exponential Graph: Communication-Efficient
Topologies for Decentralized Learning via Finite-time Convergence", 2023, arXiv 2305.11420. There the weights of an exchange
depend on the round, and all models are equal after one cycle. Here an exchange on one edge averages two models, so this holds
for k = 1 and a power of two only.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

Edge = tuple[int, int]


def base_k_edges(peers: int, k: int) -> set[Edge]:
    """Return the edges, as (smaller id, larger id).

    >>> sorted(base_k_edges(5, 1))
    [(0, 1), (0, 2), (0, 4), (1, 2), (1, 3), (2, 3)]
    """
    base, size = k + 1, 1
    while size * base <= peers:
        size *= base
    edges, first = set[Edge](), 0
    while first < peers:
        blocks = (peers - first) // size
        later = range(first + blocks * size, peers)
        if blocks:
            edges.update(_cube(first, size, base, blocks))
        if blocks and later:
            starts = range(first, later.start, size)
            edges.update((start + at, peer) for start in starts for at, peer in enumerate(later))
            left = [peer for start in starts for peer in range(start + len(later), start + size)]
            groups = (left[at : at + base] for at in range(0, len(left), base))
            edges.update(edge for group in groups for edge in combinations(group, 2))
        first, size = later.start, size // base
    return edges


def _cube(first: int, size: int, base: int, blocks: int) -> Iterator[Edge]:
    """Yield the pairs of a part that differ in one digit: in base ``base`` within a block, or in the block."""
    stride = 1
    while stride <= size:
        radix = base if stride < size else blocks
        for peer in range(size * blocks):
            ahead = radix - peer // stride % radix
            yield from ((first + peer, first + peer + step * stride) for step in range(1, ahead))
        stride *= base
