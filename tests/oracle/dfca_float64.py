"""DFCA in float64, from the paper's equations alone: an independent oracle that shares no code with the project.

Source of all equations: Kirch, Becker, Koketsu Rodrigues, Harmeling, "DFCA: Decentralized Federated Clustering Algorithm", 2025
(arXiv 2510.15300).

Softmax regression on fixed data, full-batch gradient steps, a synchronous loop over peers. Models are [d] vectors: weights
[features, classes] in C order, then biases [classes].
"""

import numpy as np


def unpack(theta, features, classes):
    return theta[: features * classes].reshape(features, classes), theta[features * classes :]


def log_probabilities(theta, x, classes):
    weights, biases = unpack(theta, x.shape[1], classes)
    logits = x @ weights + biases
    logits = logits - logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def mean_loss(theta, x, y, classes):
    """Mean cross-entropy of one peer's data: F_i of Eq. 1."""
    return -log_probabilities(theta, x, classes)[np.arange(len(y)), y].mean()


def gradient(theta, x, y, classes):
    error = np.exp(log_probabilities(theta, x, classes))
    error[np.arange(len(y)), y] -= 1.0
    return np.concatenate([(x.T @ error).ravel(), error.sum(axis=0)]) / len(y)


def assign(models, x, y, classes):
    """Cluster with the lowest loss, Eq. 4; ties go to the lowest index."""
    return int(np.argmin([mean_loss(theta, x, y, classes) for theta in models]))


def train(theta, x, y, classes, steps, learning_rate):
    """Local training, Eq. 5 and 9: one step is one gradient of the whole training set."""
    for _ in range(steps):
        theta = theta - learning_rate * gradient(theta, x, y, classes)
    return theta


def fold_batch(own, arrivals):
    """Batch average, Eq. 7."""
    return (own + sum(arrivals, np.zeros_like(own))) / (len(arrivals) + 1)


def fold_sequential(own, arrivals):
    """Sequential running average, Eq. 8: the counter starts at 1, because the local model is the first sample."""
    for r, arrival in enumerate(arrivals, start=1):
        own = r / (r + 1) * own + arrival / (r + 1)
    return own


def metropolis(neighbors):
    size = len(neighbors)
    weights = np.zeros((size, size))
    for i, around in enumerate(neighbors):
        for m in around:
            weights[i, m] = 1.0 / (1 + max(len(around), len(neighbors[m])))
        weights[i, i] = 1.0 - weights[i].sum()
    return weights


def relay(models, trained, weights, steps):
    """Relay warm-up of this project (not in the paper): (s, m) <- W (s, m), ``steps`` times; theta <- s / m where m > 0."""
    peers, k = len(models), len(models[0])
    for j in range(k):
        mass = np.array([1.0 if trained[i] == j else 0.0 for i in range(peers)])
        sums = np.array([models[i][j] * mass[i] for i in range(peers)])
        for _ in range(steps):
            mass, sums = weights @ mass, weights @ sums
        for i in range(peers):
            if mass[i] > 0:
                models[i][j] = sums[i] / mass[i]


def run(
    data, classes, initial, neighbors, rounds, *, tau, learning_rate, aggregation="sequential", warmup=0, relay_steps=1
):
    """Algorithm 1 with every peer in every round.

    Args:
        data: per peer (x float64 [n, features], y int [n]).
        classes: number of classes.
        initial: per peer its k initial models, float64 [d].
        neighbors: per peer the ids of its neighbors, ascending.
        rounds: T.
        tau: full-batch steps per round.
        learning_rate: eta.
        aggregation: "sequential" (Eq. 8) or "batch" (Eq. 7).
        warmup: number of rounds with relay.
        relay_steps: mixing steps in each of these rounds.

    Returns:
        The models per peer and cluster, and the cluster of each peer after the last round.
    """
    models = [[theta.copy() for theta in own] for own in initial]
    peers, k = len(models), len(models[0])
    fold = fold_batch if aggregation == "batch" else fold_sequential
    for t in range(rounds):
        cluster = [assign(models[i], *data[i], classes) for i in range(peers)]
        for i, j in enumerate(cluster):
            models[i][j] = train(models[i][j], *data[i], classes, tau, learning_rate)
        if t < warmup:
            relay(models, cluster, metropolis(neighbors), relay_steps)
            continue
        sent = [models[i][j] for i, j in enumerate(cluster)]
        models = [
            [fold(models[i][j], [sent[m] for m in neighbors[i] if cluster[m] == j]) for j in range(k)]
            for i in range(peers)
        ]
    return models, [assign(models[i], *data[i], classes) for i in range(peers)]
