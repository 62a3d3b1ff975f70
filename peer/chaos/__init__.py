"""Faults on purpose: a TCP fault proxy between every pair of peers, scripts of faults, and who carries them out."""
