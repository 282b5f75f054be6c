"""What the source of a release's KV-events module says beyond its classes: annotations and replay frames.

The executed classes know field names, defaults and encodings; how an annotation was spelt, and which frames the
publisher writes when it replays, stand in the source alone.
"""

from __future__ import annotations

import ast

from kvwire_conform.releases_source import ReleaseError, ReleaseSource

_FRAME_OF = {"_topic_bytes": "topic", "seq": "seq", "buf": "payload"}


def field_annotations(source: ReleaseSource) -> dict[str, dict[str, str]]:
    """Per class, the annotation of each field it declares itself, in the spelling ``int | None``."""
    return {
        node.name: {
            item.target.id: _spell(item.annotation)
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        }
        for node in ast.walk(ast.parse(source.text))
        if isinstance(node, ast.ClassDef)
    }


def replay_frames(source: ReleaseSource) -> tuple[str, ...]:
    """Frames of one replay reply after the empty delimiter: seq and payload, from vLLM 0.26.0 and SGLang 0.5.22 on with
    the topic before them.

    Raises:
        ReleaseError: ``release-code``, if the publisher's replay is not written in a way that is known.
    """
    for function in ast.walk(ast.parse(source.text)):
        if isinstance(function, ast.FunctionDef) and function.name == "_service_replay":
            for call in ast.walk(function):
                frames = _sent_frames(call)
                if "payload" in frames:
                    return frames
    raise ReleaseError(
        f"{source.release}: found no replay reply in its publisher; its replay must be read by hand",
        code="release-code",
    )


def _sent_frames(call: ast.AST) -> tuple[str, ...]:
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
        return ()
    if call.func.attr != "send_multipart" or not call.args or not isinstance(call.args[0], (ast.Tuple, ast.List)):
        return ()
    return tuple(
        next((_FRAME_OF[name] for name in _names(frame) if name in _FRAME_OF), "?") for frame in call.args[0].elts[2:]
    )


def _names(frame: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(frame):
        if isinstance(node, ast.Attribute):
            found.append(node.attr)
        elif isinstance(node, ast.Name):
            found.append(node.id)
    return found


class _Respell(ast.NodeTransformer):
    """``Optional[X]`` and ``Union[X, Y]`` as ``X | None`` and ``X | Y``; a quoted annotation as what it quotes."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            respelt: ast.AST = self.visit(ast.parse(node.value, mode="eval").body)
            return respelt
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return ast.Name(node.attr) if ast.unparse(node.value) == "typing" else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        kind = node.value.id if isinstance(node.value, ast.Name) else ""
        if kind == "Optional":
            return _union([node.slice, ast.Constant(None)])
        if kind == "Union":
            return _union(node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice])
        return node


def _union(parts: list[ast.expr]) -> ast.expr:
    joined = parts[0]
    for part in parts[1:]:
        joined = ast.BinOp(joined, ast.BitOr(), part)
    return joined


def _spell(annotation: ast.expr) -> str:
    return ast.unparse(ast.fix_missing_locations(_Respell().visit(annotation)))
