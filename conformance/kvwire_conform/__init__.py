"""The conformance runner: what speaks the KV-cache event wire, judged.

(PYTEST_DONT_REWRITE: the pytest plugin in it leaves assertions here as they are.)
"""
