"""The requests that fill a simulated cache: shared prefixes, growing sessions, repeats."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

VOCABULARY = 128_000
IMAGE_TOKEN = 151_655
"""What stands for each patch of an image; all images look alike to whoever ignores extra_keys."""


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        prompt, output: token ids.
        salt: the tenant's cache salt.
        lora: index into the simulator's LoRA names.
        extra_key: SGLang's request class; separates caches without entering the hash in the default format.
        session_id: who is to be named as the cause of a store.
        image: identifier and first token of a picture in the prompt.
    """

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    salt: str | None = None
    lora: int | None = None
    extra_key: str | None = None
    session_id: str | None = None
    image: tuple[str, int] | None = None


@dataclass(frozen=True)
class Tenancy:
    """Under what a conversation runs."""

    salt: str | None
    lora: int | None
    extra_key: str | None


@dataclass
class _Session:
    name: str
    tenancy: Tenancy
    history: tuple[int, ...] = field(default=())


class Workload:
    """An endless stream of requests.

    Args:
        rng: where all choice comes from.
        block_size: tokens per block, which the lengths are made of.
        max_blocks: the longest prompt with its output, in blocks.
        prefixes: how many system prompts are shared.
        sessions: how many conversations go on at once.
        salts, loras, extra_keys: what some of the requests carry.
        images: whether some prompts hold an image.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        block_size: int,
        max_blocks: int,
        prefixes: int,
        sessions: int,
        salts: Sequence[str],
        loras: int,
        extra_keys: Sequence[str],
        images: bool,
    ) -> None:
        self._rng = rng
        self._block = block_size
        self._max = max_blocks * block_size
        self._salts = salts
        self._loras = loras
        self._extra_keys = extra_keys
        self._images = images
        self._prefixes = [self._tokens(max(1, max_blocks // 2) * block_size) for _ in range(prefixes)]
        self._sessions = [self._session(number) for number in range(1, sessions + 1)]
        self._recent: deque[Request] = deque(maxlen=16)

    def next(self) -> Request:
        """The next request."""
        kind = self._rng.random()
        if kind < 0.15 and self._recent:
            return self._rng.choice(self._recent)
        if kind < 0.50 and self._sessions:
            request = self._turn(self._rng.choice(self._sessions))
        elif kind < 0.80 and self._prefixes:
            request = self._on_prefix(self._rng.choice(self._prefixes))
        else:
            request = self._request(self._tokens(self._length(1, 3)), self._tenancy())
        self._recent.append(request)
        return request

    def _on_prefix(self, prefix: tuple[int, ...]) -> Request:
        kept = self._rng.randint(1, len(prefix) // self._block) * self._block
        return self._request(prefix[:kept] + self._tokens(self._length(0, 2)), self._tenancy())

    def _turn(self, session: _Session) -> Request:
        question = self._tokens(self._length(0, 2))
        if len(session.history) + len(question) + 2 * self._block > self._max:
            session.history = ()
            session.tenancy = self._tenancy()
        request = self._request(session.history + question, session.tenancy, session.name)
        session.history = request.prompt + request.output
        return request

    def _request(self, prompt: tuple[int, ...], tenancy: Tenancy, session: str | None = None) -> Request:
        prompt = prompt[: self._max - self._block]
        image = None
        if self._images and session is None and len(prompt) > 2 * self._block and self._rng.random() < 0.15:
            start = self._rng.randrange(len(prompt) - self._block)
            image = (f"{self._rng.getrandbits(256):064x}", start)
            prompt = prompt[:start] + (IMAGE_TOKEN,) * self._block + prompt[start + self._block :]
        output = self._tokens(self._rng.randrange(self._max - len(prompt)) % (2 * self._block))
        return Request(prompt, output, tenancy.salt, tenancy.lora, tenancy.extra_key, session, image)

    def _session(self, number: int) -> _Session:
        return _Session(f"session-{number}", self._tenancy())

    def _tenancy(self) -> Tenancy:
        """Most traffic is plain; the rest carries a salt, a LoRA adapter, a request class, or two of them."""
        kind = self._rng.random()
        salt = self._rng.choice(self._salts) if self._salts and kind < 0.35 else None
        lora = self._rng.randrange(self._loras) if self._loras and 0.3 <= kind < 0.55 else None
        extra = self._rng.choice(self._extra_keys) if self._extra_keys and 0.5 <= kind < 0.65 else None
        return Tenancy(salt, lora, extra)

    def _length(self, low: int, high: int) -> int:
        """A length in tokens of ``low`` to ``high`` blocks, often not whole ones."""
        blocks = self._rng.randint(low, high) * self._block
        return blocks if blocks and self._rng.random() < 0.3 else blocks + self._rng.randint(1, self._block)

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._rng.randrange(1, VOCABULARY) for _ in range(count))
