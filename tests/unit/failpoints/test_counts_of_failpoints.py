"""A failpoint is counted over the whole life of a process, which opens its peer anew for each graph file."""

import errno

import pytest

from peer import failpoints

RULE = "close.end=error:ENOSPC@2"


def test_the_same_rules_again_keep_the_counts_and_other_rules_do_not():
    try:
        failpoints.arm(RULE)
        failpoints.reach("close.end")
        failpoints.arm(RULE)
        with pytest.raises(OSError, match=rf"\[Errno {errno.ENOSPC}\]"):
            failpoints.reach("close.end")
        failpoints.arm("")
        failpoints.arm(RULE)
        failpoints.reach("close.end")
    finally:
        failpoints.arm("")
