"""Measures kvwire and its peers on the same payloads, interleaved: ``python -m benchmarks`` (see docs/performance.md)."""
