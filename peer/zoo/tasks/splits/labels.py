"""Splits by label, by writer, by a column, or without a difference between the peers.

Sources: DPFL (Kharrat, Canini and Horvath 2025, arXiv:2406.06520) for dirichlet, patho and label_flip; CGPFL (Tang, Guo and
Guo 2021, arXiv:2106.13044) for two_class. OURS marks what a paper leaves open.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import ConfigProblem, TaskError
from coordinator_free_bootstrap.validation import counted
from peer.zoo.tasks.splits.options import ByColumn, Dirichlet, LabelFlip, Patho, SplitOptions, TwoClass, WriterOptions
from peer.zoo.tasks.splits.plan import Index, PeerSplit, PoolSamples, SplitFunction, SplitInput, divide, paired

REDRAWS_MAX = 1000


def iid(data: SplitInput, options: SplitOptions, draw: np.random.Generator) -> list[PeerSplit]:
    """Divide all samples at random; all peers have one distribution."""
    return paired(*(divide(PoolSamples.of(half, 0, 0), data.peers, draw) for half in data.halves))


def dirichlet(data: SplitInput, options: Dirichlet, draw: np.random.Generator) -> list[PeerSplit]:
    """Per class, shares of the peers from Dir(alpha * 1); a peer with total / N samples gets no more.

    Repeated until every peer has ``samples_min`` (20) training samples; cap and minimum as in the code of DPFL. The test
    set has the same shares.
    """
    alpha, least = options.alpha, options.samples_min
    classes = int(data.labels.max()) + 1
    train_half, test_half = data.halves
    by_class = [train_half[data.labels[train_half] == c] for c in range(classes)]
    for _ in range(REDRAWS_MAX):
        shares, held = np.zeros((data.peers, classes)), np.zeros(data.peers)
        for c, members in enumerate(by_class):
            drawn = draw.dirichlet(np.full(data.peers, alpha)) * (held < data.train_count / data.peers)
            shares[:, c] = drawn / drawn.sum() if drawn.sum() > 0 else 1.0 / data.peers
            held += shares[:, c] * len(members)
        train = _by_shares(data, train_half, shares, draw)
        if min(map(len, train)) >= least:
            break
    else:
        raise TaskError(
            f"split: dirichlet({alpha}): expected {least} samples or more for each peer, got fewer in each of {REDRAWS_MAX} "
            "draws. Use a larger alpha, fewer peers or a smaller samples_min."
        )
    return paired(train, _test_samples(data, test_half, shares, draw))


def patho(data: SplitInput, options: Patho, draw: np.random.Generator) -> list[PeerSplit]:
    """Give each peer ``classes_per_peer`` (3) random classes; its owners share a class by Dir(0.5), 10 or more each."""
    classes = int(data.labels.max()) + 1
    per_peer, least = options.classes_per_peer, options.samples_min
    if per_peer > classes:
        key = "run.split_options.classes_per_peer"
        raise TaskError(ConfigProblem(key, f"at most {classes}, the number of classes", str(per_peer)))
    owned = np.zeros((data.peers, classes), dtype=bool)
    for i in range(data.peers):
        owned[i, draw.choice(classes, per_peer, replace=False)] = True
    train_half, test_half = data.halves
    shares = np.zeros((data.peers, classes))
    for c in range(classes):
        owners = np.flatnonzero(owned[:, c])
        members = int((data.labels[train_half] == c).sum())
        if len(owners) == 0:
            continue
        if members < least * len(owners):
            raise TaskError(
                f"split: patho: expected {least} or more per peer, got {counted(members, 'sample')} of class {c} for "
                f"{counted(len(owners), 'peer')}. Use fewer peers or a smaller samples_min."
            )
        floor = least / members if members else 0.0
        shares[owners, c] = floor + (1.0 - floor * len(owners)) * draw.dirichlet(np.full(len(owners), 0.5))
    train = _by_shares(data, train_half, shares, draw)
    return paired(train, _test_samples(data, test_half, shares, draw))


def two_class(data: SplitInput, options: TwoClass, draw: np.random.Generator) -> list[PeerSplit]:
    """Give peer i classes (2i, 2i + 1) mod C, half each; sizes uniform in 400..5000, 75 % for training (CGPFL).

    OURS: training and test images are pooled first, and all sizes shrink by one factor if the data are too few.
    True cluster = the pair of classes.
    """
    classes = int(data.labels.max()) + 1
    pairs = max(1, classes // 2)
    sizes = draw.integers(options.samples_min, options.samples_max, data.peers, endpoint=True).astype(np.float64)
    group = np.arange(data.peers) % pairs
    by_class = [draw.permutation(np.flatnonzero(data.labels == c)) for c in range(classes)]
    need = [sizes[group == g].sum() / 2 for g in range(pairs)]
    have = [min(len(by_class[2 * g]), len(by_class[(2 * g + 1) % classes])) for g in range(pairs)]
    scale = min(1.0, *(h / n for h, n in zip(have, need, strict=True) if n > 0))
    taken = [0] * classes
    splits = []
    for size, g in zip(sizes, group, strict=True):
        parts: list[tuple[Index, Index]] = []
        half = int(size * scale / 2)
        for c in (2 * int(g), (2 * int(g) + 1) % classes):
            members = by_class[c][taken[c] : taken[c] + half]
            taken[c] += half
            cut = round(options.train_share * len(members))
            parts.append((members[:cut], members[cut:]))
        train, test = (PoolSamples.of(np.concatenate(both), 0, int(g)) for both in zip(*parts, strict=True))
        splits.append(PeerSplit(train, test))
    return splits


def label_flip(data: SplitInput, options: LabelFlip, draw: np.random.Generator) -> list[PeerSplit]:
    """Rename the labels of a share ``q`` of the peers by one common permutation (DPFL); cluster 1 = these peers."""
    bases: dict[str, tuple[SplitFunction, type[SplitOptions]]]
    bases = {"iid": (iid, SplitOptions), "dirichlet": (dirichlet, Dirichlet), "patho": (patho, Patho)}
    deal, of_base = bases[options.base]
    classes = int(data.labels.max()) + 1
    flipped = set(draw.choice(data.peers, round(options.q * data.peers), replace=False).tolist())
    permutation = np.arange(classes, dtype=np.int64)
    while classes > 1 and (permutation == np.arange(classes)).all():
        permutation = draw.permutation(classes).astype(np.int64)
    splits = []
    for i, split in enumerate(deal(data, options.of_base(of_base), draw)):
        cluster = int(i in flipped)
        marked = replace(split, train=_marked(split.train, cluster), test=_marked(split.test, cluster))
        marked = replace(marked, validation=_marked(split.validation, cluster))
        splits.append(replace(marked, label_map=permutation) if cluster else marked)
    return splits


def writers(data: SplitInput, options: WriterOptions, draw: np.random.Generator) -> list[PeerSplit]:
    """Give peer i the images of writer i of FEMNIST, rotated by cluster i mod ``k`` (OURS; 1, the default: upright)."""
    if data.group is None:
        raise TaskError("split: writers: expected task femnist, got a data set without writers")
    turns = options.turns
    ids = np.unique(data.group)
    if len(ids) < data.peers:
        raise TaskError(
            f"split: writers: expected at most {counted(len(ids), 'peer')}, one for each writer, got {data.peers}"
        )
    splits = []
    for i, writer in enumerate(ids[: data.peers]):
        cluster = i % len(turns)
        mine = [half[data.group[half] == writer] for half in data.halves]
        train, test = (PoolSamples.of(index, turns[cluster], cluster) for index in mine)
        splits.append(PeerSplit(train, test))
    return splits


def by_column(data: SplitInput, options: ByColumn, draw: np.random.Generator) -> list[PeerSplit]:
    """Give each peer the rows of one value of the table's column ``by``; more values than peers are dealt in order.

    Values are in ascending order. Peer i has value i, and with more values than peers also values i + N, i + 2 N, ...
    """
    # the data set's loader reads the column
    if data.group is None:
        raise TaskError("split: by_column: expected task tabular, got a data set without columns")
    values = np.unique(data.group)
    if len(values) < data.peers:
        raise TaskError(
            "run.split_options.by: expected one value per peer or more, got "
            f"{counted(len(values), 'different value')} for {counted(data.peers, 'peer')}. Use fewer peers, or "
            "another column."
        )
    owner = np.searchsorted(values, data.group) % data.peers
    halves = ([PoolSamples.of(half[owner[half] == i]) for i in range(data.peers)] for half in data.halves)
    return paired(*halves)


def _marked(samples: PoolSamples, cluster: int) -> PoolSamples:
    return PoolSamples.of(samples.index, samples.turns, cluster)


def _by_shares(
    data: SplitInput, half: Index, shares: NDArray[np.float64], draw: np.random.Generator
) -> list[PoolSamples]:
    """Divide each class, permuted, by the shares [peers, classes]; classes without an owner are left out."""
    portions: list[list[Index]] = [[] for _ in shares]
    for c in range(shares.shape[1]):
        members = draw.permutation(half[data.labels[half] == c])
        ends = np.rint(np.cumsum(shares[:, c]) * len(members)).astype(np.int64)
        for portion, start, end in zip(portions, [0, *ends[:-1]], ends, strict=True):
            portion.append(members[start:end])
    return [PoolSamples.of(np.concatenate(portion)) for portion in portions]


def _test_samples(
    data: SplitInput, half: Index, shares: NDArray[np.float64], draw: np.random.Generator
) -> list[PoolSamples]:
    """Divide the test set by shares; a peer whose shares round to no sample gets one of its largest class (OURS).

    Another peer has that sample too.
    """
    filled = []
    for portion, share in zip(_by_shares(data, half, shares, draw), shares, strict=True):
        members = half[data.labels[half] == int(share.argmax())]
        filled.append(portion if len(portion) or not len(members) else PoolSamples.of(draw.choice(members, 1)))
    return filled
