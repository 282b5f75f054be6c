"""A project that speaks the KV-cache event wire: the sample that the recipes of docs/ci.md are tried on."""
