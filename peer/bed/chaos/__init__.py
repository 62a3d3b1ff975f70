"""Fault injection: the table of faults, scripts of them, TCP fault proxies between peers, and the runner of a testbed."""
