"""Seeds of torch's generators: two threads, as two peers in one process have, draw what each alone would draw."""

import threading

import torch

from peer.learning.flat import seeded

CPU = torch.device("cpu")
ROUNDS = 1000


def test_threads_do_not_draw_from_each_others_seeds():
    """Without a lock nearly every run of this test draws a wrong number."""
    wrong: dict[int, int] = {}
    begin = threading.Barrier(2)

    def draw(seed: int) -> None:
        with seeded(seed, CPU):
            expected = torch.rand(64)
        begin.wait()
        for _ in range(ROUNDS):
            with seeded(seed, CPU):
                found = torch.cat([torch.rand(16) for _ in range(4)])
            wrong[seed] = wrong.get(seed, 0) + int(not torch.equal(found, expected))

    threads = [threading.Thread(target=draw, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == {1: 0, 2: 0}


def test_the_state_before_is_restored():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with seeded(1, CPU):
        torch.rand(7)
    assert torch.equal(torch.rand(3), expected)
