"""Drive a real router process over ZeroMQ, read back what it indexed, and judge it against what the payloads mean.

One router so far: NVIDIA Dynamo's standalone KV indexer (`kvwire_conform.routers.dynamo`).
"""
