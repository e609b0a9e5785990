"""Fifty prompts that differ: prose, code, chat, numbers, several scripts; 1 to 1,500 tokens."""

from __future__ import annotations

import argparse
import inspect
import json.decoder
import textwrap
from collections.abc import Sequence

from roundhouse.model_store.tokenizer import Tokenizer

SHORT = [
    "a",
    "The",
    "Once upon a time",
    "def fibonacci(n):",
    "The capital of France is",
    "1, 1, 2, 3, 5, 8, 13,",
    "Water boils at a temperature of",
    "SELECT name, age FROM people WHERE",
    "Dear Sir or Madam,\n\n",
    '{"name": "Ada", "born": 18',
    "Die Hauptstadt von Österreich ist",
    "La vie est belle parce que",
    "日本の首都は",
    "Привет, как дела?",
    "Emoji: 🙂 🚂 🛤️ and then",
    "   indented text keeps its spaces",
    "\n\n\n",
    "A A A A A A A A A A A A A A A A A A A A",
    "To be, or not to be, that is the question:",
    "import numpy as np\n\nx = np.",
]

QUESTIONS = [
    "What is a roundhouse on a railway?",
    "Write a haiku about rain.",
    "Count from 1 to 5.",
    "Explain recursion to a child in two sentences.",
    "What is 17 + 25?",
    "Name three primary colours.",
    "Translate 'good morning' to Spanish.",
    "Why is the sky blue?",
    "Give me a recipe for pancakes.",
    "Who wrote Hamlet?",
]

LONG_LENGTHS = [31, 32, 33, 64, 100, 127, 128, 129, 200, 255, 256, 257, 300, 400, 511, 512, 513, 700, 1024, 1500]


def chat(question: str) -> str:
    return (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    )


def varied_prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids of the fifty prompts, in an order that mixes short and long."""
    source = textwrap.dedent(inspect.getsource(argparse) + inspect.getsource(json.decoder))
    ids = tokenizer.encode(source[20_000:60_000], add_special_tokens=False)
    starts = [97 * i for i in range(len(LONG_LENGTHS))]
    long = [ids[start : start + length] for start, length in zip(starts, LONG_LENGTHS, strict=True)]
    texts: Sequence[str] = [*SHORT, *map(chat, QUESTIONS)]
    short = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    prompts = [*short, *long]
    return [prompts[(i * 7) % len(prompts)] for i in range(len(prompts))]


def two_hundred_prompts(tokenizer: Tokenizer) -> list[str | dict[str, list[int]]]:
    """Texts and token ids in turn, 1 to 300 tokens, many of which begin like another one."""
    source = textwrap.dedent(inspect.getsource(argparse))
    ids = tokenizer.encode(source[20_000:60_000], add_special_tokens=False)
    texts = [*SHORT, *map(chat, QUESTIONS)]
    texts += [f"{text} {question}" for text, question in zip(SHORT, [*QUESTIONS, *QUESTIONS], strict=True)]
    texts += [chat(f"{question} Answer in {count} words.") for question in QUESTIONS for count in (1, 5, 9, 20)]
    # Every second of these begins where its neighbour does, and is longer.
    lengths = [1 + (index * 37) % 70 for index in range(100)] + [256, 300, 129, 128, 127, 16, 15, 17, 32, 33]
    slices = [{"prompt_token_ids": ids[97 * (index // 2) :][:length]} for index, length in enumerate(lengths)]
    prompts: list[str | dict[str, list[int]]] = [*texts, *slices]
    assert len(prompts) == 200, len(prompts)
    return [prompts[(index * 7) % 200] for index in range(200)]
