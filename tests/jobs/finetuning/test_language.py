"""Causal language models under an adapter: texts in, an adapter that plain peft loads, perplexity on held-out texts."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from oracle import assert_close, clipped_sum, per_example_gradients
from tacit.errors import ArgumentError, FileError
from tacit.jobs.export import export
from tacit.jobs.facts import facts_of
from tacit.jobs.language import language_task, with_language_model
from tacit.jobs.prediction import load
from tacit.jobs.run import resolve, run_job
from tacit.jobs.settings import DataConfig, experiment_of
from tacit.losses import next_token
from tacit.models.language import load_language_model
from tacit.raw.clipping import Clipper
from tacit.runs import load_certificate, verify
from tacit.support import Support

transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra 'text')")
peft = pytest.importorskip("peft", reason="peft is not installed (extra 'text')")

WORDS = ("<pad>", "<unk>", "the", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", ".")


def _tokenizer() -> Any:
    import tokenizers

    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", unk_token="<unk>")


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformers directory with a tiny GPT-2 and its tokenizer."""
    directory = tmp_path_factory.mktemp("models") / "gpt"
    torch.manual_seed(4)
    config = transformers.GPT2Config(
        vocab_size=len(WORDS), n_embd=8, n_layer=2, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(directory)
    _tokenizer().save_pretrained(directory)
    return directory


def _sentence(draw: np.random.Generator) -> str:
    who, what, where, thing = (
        draw.choice(pair) for pair in (("cat", "dog"), ("sat", "ran"), ("on", "under"), ("mat", "tree"))
    )
    return f"the {who} {what} {where} the {thing} ."


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    """A folder of 60 files, of one to four sentences."""
    draw = np.random.default_rng(0)
    folder = tmp_path / "letters"
    folder.mkdir()
    for number in range(60):
        text = " ".join(_sentence(draw) for _ in range(1 + number % 4))
        (folder / f"{number}.txt").write_text(text)
    return folder


def _settings(source: Path, model: Path, **data: Any) -> dict[str, dict[str, Any]]:
    return {
        "data": {"source": str(source), "task": "generate", "length": 8, **data},
        "model": {"name": str(model), "lora_rank": 2},
        "method": {"name": "lora"},
        "privacy": {"epsilon": 8.0, "delta": 1e-3, "accountant": "rdp"},
        "training": {"batch_size": 12, "epochs": 3.0, "optimizer": "adam", "learning_rate": 0.02},
    }


def test_an_adapter_trained_on_a_folder_loads_in_plain_peft_with_the_same_outputs(
    letters: Path, gpt: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    outcome = run_job(experiment_of(_settings(letters, gpt)), out, finetune=True, progress=False)
    assert outcome.result.finished
    base = transformers.AutoModelForCausalLM.from_pretrained(gpt)
    plain = peft.PeftModel.from_pretrained(base, out / "adapter").eval()
    ids = torch.tensor([[2, 3, 5, 7, 2, 9], [2, 4, 6, 8, 2, 10]])
    trained = outcome.trainer.model.eval()
    with torch.no_grad():
        assert torch.equal(plain(input_ids=ids).logits, trained(input_ids=ids).logits)
        assert not torch.allclose(plain(input_ids=ids).logits, untouched_model(gpt)(input_ids=ids).logits)
    verdict = verify(out)
    assert verdict.agrees, verdict
    assert verdict.for_release
    path = out / "adapter" / "adapter_model.safetensors"
    whole = path.read_bytes()
    save_file({name: 100 * value for name, value in load_file(path).items()}, path)
    assert "adapter_model.safetensors does not hold the weights of model.safetensors" in str(verify(out))
    certificate = load_certificate(out / "certificate.json")
    assert "Including or leaving out one file with all its text changes" in certificate.statement
    assert certificate.counted == "units"
    measured = json.loads((out / "result.json").read_text())["measured"]
    assert measured["perplexity"] == pytest.approx(_perplexity(trained, outcome.problem.held_out), rel=1e-5)
    assert measured["perplexity_before"] == pytest.approx(
        _perplexity(untouched_model(gpt), outcome.problem.held_out), rel=1e-5
    )
    with pytest.raises(FileError, match=r"generates texts; load .*adapter with peft"):
        load(out)
    with pytest.raises(FileError, match="not what its certificate speaks of"):
        export(out, tmp_path / "adapters", "peft")
    path.write_bytes(whole)
    export(out, tmp_path / "adapters", "peft")
    config = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == gpt.name
    base = transformers.AutoModelForCausalLM.from_pretrained(gpt)
    exported = peft.PeftModel.from_pretrained(base, tmp_path / "adapters").eval()
    with torch.no_grad():
        assert torch.equal(exported(input_ids=ids).logits, trained(input_ids=ids).logits)


def test_a_dry_run_counts_files_on_both_sides(letters: Path, gpt: Path) -> None:
    job = resolve(experiment_of(_settings(letters, gpt)), finetune=True)
    assert job.problem.task is not None
    out = len(set(job.problem.task.held_out_units))
    assert 0 < out < len(job.problem.held_out)
    assert job.problem.examples + out == 60
    assert f"{60 - out} files to train on, {out} held out." in facts_of(job.problem)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_a_base_model_may_be_held_in_fewer_bits(
    precision: str, letters: Path, gpt: Path, tmp_path: Path
) -> None:
    settings = _settings(letters, gpt)
    settings["model"]["base_precision"] = precision
    outcome = run_job(experiment_of(settings), tmp_path / "run", finetune=True, progress=False)
    model: Any = outcome.trainer.model
    held = {p.dtype for p in model.parameters() if p.requires_grad}
    assert held == {torch.float32}  # what is trained is not rounded
    frozen = [t for t in (*model.parameters(), *model.buffers()) if not t.requires_grad and t.dim() == 2]
    narrow = {"int8": torch.int8, "bfloat16": torch.bfloat16}[precision]
    assert sum(t.numel() for t in frozen if t.dtype is narrow) > sum(t.numel() for t in frozen) / 2
    assert verify(tmp_path / "run").agrees
    base = transformers.AutoModelForCausalLM.from_pretrained(gpt)
    plain = peft.PeftModel.from_pretrained(base, tmp_path / "run" / "adapter").eval()
    ids = torch.tensor([[2, 3, 5, 7, 2, 9]])
    with torch.no_grad():
        found = model.eval()(input_ids=ids).logits.float()
    assert torch.allclose(plain(input_ids=ids).logits, found, atol=0.05)


def test_without_noise_the_adapter_learns_to_write_like_the_texts(
    letters: Path, gpt: Path, tmp_path: Path
) -> None:
    settings = _settings(letters, gpt)
    settings["privacy"]["epsilon"] = math.inf
    settings["training"]["seed"] = 1
    measured = run_job(
        experiment_of(settings), tmp_path / "run", finetune=True, progress=False
    ).result.measured
    assert measured["perplexity"] < 0.99 * measured["perplexity_before"]


def untouched_model(directory: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(directory).eval()


@torch.no_grad()
def _perplexity(model: Any, dataset: Any) -> float:
    """One row at a time, without padding."""
    total, count = 0.0, 0
    for item in dataset:
        ids = item["input_ids"][item["attention_mask"].bool()][None]
        total += float(F.cross_entropy(model(input_ids=ids).logits[0, :-1], ids[0, 1:], reduction="sum"))
        count += ids.shape[1] - 1
    return math.exp(total / count)


def test_a_run_that_was_stopped_goes_on_from_its_directory(letters: Path, gpt: Path, tmp_path: Path) -> None:
    from tacit.training import trainer as module

    out = tmp_path / "run"
    steps = module.Trainer.steps

    def interrupted(self: Any) -> Any:
        for number, step in enumerate(steps(self)):
            yield step
            if number == 2:
                self.save()
                raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.Trainer, "steps", interrupted)
        with contextlib.suppress(KeyboardInterrupt):
            run_job(experiment_of(_settings(letters, gpt)), out, finetune=True, progress=False)
    assert not (out / "adapter").exists()
    outcome = run_job(out, progress=False)
    assert outcome.result.finished
    assert (out / "adapter" / "adapter_model.safetensors").exists()
    assert verify(out).agrees


def test_a_file_is_one_unit_however_long(letters: Path, gpt: Path) -> None:
    task = language_task(
        DataConfig(source=str(letters), task="generate", tokenizer=str(gpt), length=8, held_out=0.2)
    )
    assert task.units is not None
    assert task.held_out_units is not None
    rows = np.bincount(task.units)
    assert set(rows[rows > 0]) == {1, 2, 3, 4}
    assert not set(task.units) & set(task.held_out_units)
    assert len(set(task.units)) + len(set(task.held_out_units)) == 60
    item: Any = task.train[0]
    assert item["input_ids"].shape == item["attention_mask"].shape == (8,)


def test_rows_of_a_table_are_units_unless_a_column_says_whose_they_are(tmp_path: Path, gpt: Path) -> None:
    draw = np.random.default_rng(1)
    table = tmp_path / "notes.csv"
    lines = [f"{number % 20},{_sentence(draw)}" for number in range(40)]
    table.write_text("who,note\n" + "\n".join(lines) + "\n")
    config = DataConfig(source=str(table), task="generate", tokenizer=str(gpt), text="note", length=6)
    task = language_task(config)
    assert task.units is None
    assert len(task.train) + len(task.held_out) == 40  # type: ignore[arg-type]
    assert all(int(task.train[n]["attention_mask"].sum()) == 6 for n in range(5))  # type: ignore[call-overload]
    by_person = language_task(DataConfig(**{**vars(config), "unit": "who"}))
    assert by_person.units is not None
    assert len(set(by_person.units)) < 20


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"method": {"name": "sparta"}}, "by --method lora"),
        ({"model": {}}, "Say --model"),
        ({"model": {"name": "gpt", "head": ["x"]}}, "head is for classifiers"),
        (
            {"model": {"name": "gpt", "base_precision": "int4"}},
            "no base precision called 'int4'; there are float32",
        ),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        with_language_model(experiment_of({**_settings(tmp_path, tmp_path), **changed}))


def test_data_and_models_that_cannot_be_used_are_refused_before_anything_is_written(
    letters: Path, gpt: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FileError, match=r"holds no \.txt files"):
        run_job(experiment_of(_settings(empty, gpt)), out, finetune=True, progress=False)
    with pytest.raises(ArgumentError, match="reads at most 16 tokens at once, not 32; say --length 16"):
        run_job(experiment_of(_settings(letters, gpt, length=32)), out, finetune=True, progress=False)
    with pytest.raises(ArgumentError, match="no target"):
        run_job(experiment_of(_settings(letters, gpt, target="x")), out, finetune=True, progress=False)
    with pytest.raises(FileError, match=r"no config\.json"):
        run_job(experiment_of(_settings(letters, empty)), out, finetune=True, progress=False)
    assert not out.exists()


@torch.no_grad()
def test_the_loss_of_a_text_does_not_see_its_padding_and_leaves_out_what_is_labelled_so(gpt: Path) -> None:
    model = untouched_model(gpt).double()
    ids = torch.tensor([[2, 3, 5, 7, 2, 9]])
    (alone,) = next_token(model, {"input_ids": ids})
    padded = {"input_ids": F.pad(ids, (0, 4)), "attention_mask": F.pad(torch.ones_like(ids), (0, 4))}
    assert float(next_token(model, padded)[0]) == pytest.approx(float(alone), rel=1e-12)
    labels = ids.clone()
    labels[0, :4] = -100
    (answer,) = next_token(model, {"input_ids": ids, "labels": labels})
    logits = model(input_ids=ids).logits[0]
    assert float(answer) == pytest.approx(float(F.cross_entropy(logits[3:5], ids[0, 4:])), rel=1e-12)
    assert float(next_token(model, {"input_ids": ids, "labels": torch.full_like(ids, -100)})[0]) == 0


def test_gradients_of_an_adapter_are_those_of_brute_force(gpt: Path) -> None:
    torch.manual_seed(1)
    model = load_language_model(gpt, 2).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    ids = torch.randint(2, len(WORDS), (5, 8))
    mask = (torch.arange(8) < torch.tensor([8, 5, 3, 2, 8])[:, None]).long()
    batch = {"input_ids": ids, "attention_mask": mask}
    support = Support.all(model)
    found = Clipper(model, next_token).clipped_sum([batch], support, 0.05).values
    expected, norms = clipped_sum(per_example_gradients(model, next_token, batch), support, 0.05)
    assert bool((norms > 0.05).any())
    assert_close(found, expected, 1e-9)
