"""Adapters of peft on unmodified models of transformers: exact against autograd of every single loss."""

from __future__ import annotations

import pytest

pytest.importorskip("peft", reason="peft is not installed (extra 'text')")

from benchmarks.families.adapters import FAMILIES
from benchmarks.families.family import Family
from benchmarks.families.hugging_face import FAMILIES as WHOLE
from benchmarks.families.judging import judge_tacit
from benchmarks.families.page import as_expected

CHOSEN = (
    "peft LoRA GPT-2 (c_attn)",
    "peft DoRA GPT-2",
    "peft rsLoRA LLaMA all-linear",
    "peft LoRA on embedding",
    "peft IA3 GPT-2",
    "peft prompt tuning GPT-2",
    "peft LoRA T5, dropout",
    "bf16 frozen base + fp32 LoRA (peft)",
    "int8 frozen base + LoRA GPT-2 (peft)",
    "int8 frozen base + LoRA LLaMA (peft)",
    "bf16 trainable weights",
    "peft LoRA GPT-2 + gradient checkpointing",
)


@pytest.mark.parametrize(
    "family", [family for family in FAMILIES if family.name in CHOSEN], ids=lambda family: family.name
)
def test_an_adapter_is_exact_or_refused_for_its_own_reason(family: Family) -> None:
    verdict = judge_tacit(family)
    row = {"tacit": {"word": verdict.word, "sentence": verdict.sentence}, "refusal expected": family.refused}
    assert as_expected(row), verdict


@pytest.mark.parametrize("name", ["HF LLaMA (GQA)", "HF Qwen3"])
def test_the_norms_of_hugging_face_have_a_rule(name: str) -> None:
    [family] = [family for family in WHOLE if family.name == name]
    verdict = judge_tacit(family)
    assert verdict.word == "exact"
    assert "Norm" not in verdict.sentence  # which names what has no rule
