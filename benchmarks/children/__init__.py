"""Processes that stand at the other end of a socket while something is measured; each answers commands on stdin."""
