"""Splits in which peers differ by their labels (DPFL, CGPFL), by writer, or not at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import TaskError
from peer.tasks.splits.plan import Index, Options, PeerSplit, Samples, SplitFunction, SplitInput, deal

REDRAWS_MAX = 1000


def iid(data: SplitInput, options: Options, draw: np.random.Generator) -> list[PeerSplit]:
    """Deal all samples at random, one distribution for all."""
    train, test = (deal(Samples.of(half, 0, 0), data.peers, draw) for half in data.halves)
    return [PeerSplit(a, b) for a, b in zip(train, test, strict=True)]


def dirichlet(data: SplitInput, options: Options, draw: np.random.Generator) -> list[PeerSplit]:
    """Per class, shares over the peers from Dir(alpha * 1); a peer that holds total / N already gets nothing more.

    Redrawn until every peer has ``samples_min`` (20) training samples (cap and minimum: DPFL's code). Test sets use the
    same shares. 20 % of each peer's training share is for validation unless ``validation`` says otherwise.
    """
    alpha = options.number("alpha", 0.1, 1e-6)
    least = options.integer("samples_min", 20, 1)
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
            f"split: dirichlet({alpha}) gave some peer fewer than {least} samples in {REDRAWS_MAX} draws; "
            "use a larger alpha, fewer peers or a smaller samples_min"
        )
    test = _never_empty(_by_shares(data, test_half, shares, draw), data, test_half, shares, draw)
    return _with_validation(train, test, options)


def patho(data: SplitInput, options: Options, draw: np.random.Generator) -> list[PeerSplit]:
    """Each peer has ``classes_per_peer`` (3) random classes; owners share each by Dir(0.5), 10 or more each (DPFL)."""
    classes = int(data.labels.max()) + 1
    per_peer = options.integer("classes_per_peer", 3, 1, classes)
    least = options.integer("samples_min", 10, 0)
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
            raise TaskError(f"split: class {c} has {members} samples for {len(owners)} owners; use fewer peers")
        floor = least / members if members else 0.0
        shares[owners, c] = floor + (1.0 - floor * len(owners)) * draw.dirichlet(np.full(len(owners), 0.5))
    train = _by_shares(data, train_half, shares, draw)
    test = _never_empty(_by_shares(data, test_half, shares, draw), data, test_half, shares, draw)
    return _with_validation(train, test, options)


def two_class(data: SplitInput, options: Options, draw: np.random.Generator) -> list[PeerSplit]:
    """Peer i has classes (2i, 2i + 1) mod C, half each; sizes uniform in 400..5000, 75 % for training (CGPFL).

    OURS: training and test images are pooled first, and all sizes shrink by one factor where the data do not suffice.
    True cluster = the pair of classes.
    """
    least = options.integer("samples_min", 400, 2)
    most = options.integer("samples_max", max(5000, least), least)
    train_share = options.number("train_share", 0.75, 0.1, 0.95)
    classes = int(data.labels.max()) + 1
    pairs = max(1, classes // 2)
    sizes = draw.integers(least, most, data.peers, endpoint=True).astype(np.float64)
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
            cut = round(train_share * len(members))
            parts.append((members[:cut], members[cut:]))
        train, test = (Samples.of(np.concatenate(both), 0, int(g)) for both in zip(*parts, strict=True))
        splits.append(PeerSplit(train, test))
    return splits


def label_flip(data: SplitInput, options: Options, draw: np.random.Generator) -> list[PeerSplit]:
    """A share ``q`` of the peers renames its labels by one common permutation (DPFL); cluster 1 = flipped peers."""
    share = options.number("q", 0.2, 0.0, 1.0)
    bases: dict[str, SplitFunction] = {"iid": iid, "dirichlet": dirichlet, "patho": patho}
    base = options.text("base", "dirichlet")
    if base not in bases:
        raise TaskError(f"split_options.base is {base!r}; {', '.join(bases)} are allowed with label_flip")
    classes = int(data.labels.max()) + 1
    flipped = set(draw.choice(data.peers, round(share * data.peers), replace=False).tolist())
    permutation = np.arange(classes, dtype=np.int64)
    while classes > 1 and (permutation == np.arange(classes)).all():
        permutation = draw.permutation(classes).astype(np.int64)
    splits = []
    for i, split in enumerate(bases[base](data, options, draw)):
        cluster = int(i in flipped)
        marked = replace(split, train=_marked(split.train, cluster), test=_marked(split.test, cluster))
        marked = replace(marked, validation=_marked(split.validation, cluster))
        splits.append(replace(marked, label_map=permutation) if cluster else marked)
    return splits


def writers(data: SplitInput, options: Options, draw: np.random.Generator) -> list[PeerSplit]:
    """Peer i is writer i of FEMNIST, rotated by writer index mod ``k`` (DFCA's rows: OURS, k = 4; 1: upright)."""
    if data.writer is None:
        raise TaskError("split: writers needs a data set with writers, such as femnist")
    turns = options.turns(1)
    ids = np.unique(data.writer)
    if len(ids) < data.peers:
        raise TaskError(f"split: the data set has {len(ids)} writers, {data.peers} peers were asked for")
    splits = []
    for i, writer in enumerate(ids[: data.peers]):
        cluster = i % len(turns)
        mine = [half[data.writer[half] == writer] for half in data.halves]
        train, test = (Samples.of(index, turns[cluster], cluster) for index in mine)
        splits.append(PeerSplit(train, test))
    return splits


def _marked(samples: Samples, cluster: int) -> Samples:
    return Samples.of(samples.index, samples.turns, cluster)


def _by_shares(data: SplitInput, half: Index, shares: NDArray[np.float64], draw: np.random.Generator) -> list[Samples]:
    """Cut each class, permuted, at the cumulative shares [peers, classes]; classes without an owner stay undealt."""
    hands: list[list[Index]] = [[] for _ in shares]
    for c in range(shares.shape[1]):
        members = draw.permutation(half[data.labels[half] == c])
        ends = np.rint(np.cumsum(shares[:, c]) * len(members)).astype(np.int64)
        for hand, start, end in zip(hands, [0, *ends[:-1]], ends, strict=True):
            hand.append(members[start:end])
    return [Samples.of(np.concatenate(hand)) for hand in hands]


def _never_empty(
    test: list[Samples], data: SplitInput, half: Index, shares: NDArray[np.float64], draw: np.random.Generator
) -> list[Samples]:
    """Give a peer whose tiny shares round to no test sample one of its largest class (OURS), shared with its owner."""
    filled = []
    for hand, share in zip(test, shares, strict=True):
        members = half[data.labels[half] == int(share.argmax())]
        filled.append(hand if len(hand) or not len(members) else Samples.of(draw.choice(members, 1)))
    return filled


def _with_validation(train: list[Samples], test: list[Samples], options: Options) -> list[PeerSplit]:
    """Hold out 20 % for validation where the option is not given (DPFL chooses collaborators on it)."""
    if options.get("validation", None) is not None:
        return [PeerSplit(a, b) for a, b in zip(train, test, strict=True)]
    splits = []
    for a, b in zip(train, test, strict=True):
        held = max(1, round(0.2 * len(a)))
        # Every fifth sample of the class-by-class hand, so that each class is held out in proportion.
        chosen = np.zeros(len(a), dtype=bool)
        chosen[np.linspace(0, len(a) - 1, held).astype(np.int64)] = True
        splits.append(PeerSplit(a[np.flatnonzero(~chosen)], b, a[np.flatnonzero(chosen)]))
    return splits
