"""A build backend that builds nothing: pip is given it in place of setuptools to save an sdist.

`pip download` of an sdist asks the package's build backend for its metadata. For an engine that means its setup code
and gigabytes of build requirements, for metadata that the sdist already carries in PKG-INFO. This file, put on the path
as ``setuptools/build_meta.py`` of that one pip process, answers from PKG-INFO, so no code of the package runs.

It runs in whatever Python that pip has, outside this package: it may import the standard library alone.
"""

import email
import pathlib


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: object = None) -> str:
    """PEP 517: write the sdist's own metadata as METADATA and return the name of the folder that holds it."""
    text = pathlib.Path("PKG-INFO").read_text(encoding="utf-8")
    headers = email.message_from_string(text)
    folder = f"{headers['Name']}-{headers['Version']}.dist-info"
    target = pathlib.Path(metadata_directory, folder)
    target.mkdir()
    (target / "METADATA").write_text(text, encoding="utf-8")
    return folder


def build_wheel(wheel_directory: str, config_settings: object = None, metadata_directory: "str | None" = None) -> str:
    """PEP 517 requires the hook; an sdist is only ever read here."""
    raise RuntimeError("this backend only tells the metadata of an sdist")
