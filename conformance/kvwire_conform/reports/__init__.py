"""Renderers of the one report model: a person's terminal, JSON, JUnit.

Each takes a finished `kvwire_conform.model.Report` and judges nothing. Text in a report may come from a hostile peer;
what a renderer writes holds no control characters, no markup and no surrogates of it.
"""
