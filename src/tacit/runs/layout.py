"""The run directory: which file is called what. Nobody else spells these names."""

from __future__ import annotations

PLAN_FILE = "plan.json"
"""What was promised: the plan, frozen before the first step."""

RUN_FILE = "run.json"
"""What the run was started with: seed, unit, model layout, isolation."""

LEDGER_FILE = "ledger.jsonl"
"""What was paid: one line per release."""

CHECKPOINT_FILE = "checkpoint.safetensors"
"""Where training has got to."""

MODEL_FILE = "model.safetensors"
"""The final weights."""

METRICS_FILE = "metrics.jsonl"
METRICS_TABLE = "metrics.csv"
"""Metrics over steps, as lines of JSON and as a table."""

CERTIFICATE_FILE = "certificate.json"
PAGE_FILE = "certificate.txt"
SIGNATURE_FILE = "certificate.sig"
"""What the run promises, for machines and for people, and its signature."""

EXPERIMENT_FILE = "experiment.json"
SCHEMA_FILE = "schema.toml"
INPUTS_FILE = "inputs.json"
"""How the command line described the run, how it read the table, and what its model takes and answers."""

STATISTICS_FILE = "statistics.json"
"""What was released about a table's columns before training, round by round."""

RESULT_FILE = "result.json"
HELD_OUT_FILE = "held_out.json"
"""What came out, and counts on held-out data."""

AUDIT_FILE = "audit.json"
DIAGNOSIS_FIGURE = "diagnosis.png"
"""What ``tacit audit`` and ``tacit diagnose`` found."""

CARD_FILE = "model_card.md"
SETTINGS_FILE = "settings.toml"
"""Parts of a bundle: the model for people, and how it was trained."""

ADAPTER_DIRECTORY = "adapter"
"""The adapter of a language model, in the form of peft."""
ADAPTER_FILE = "adapter/adapter_model.safetensors"
"""Its weights, by the name that peft gives them."""

COMPARISON_FILE = "comparison.json"
"""What ``tacit compare`` writes to a folder of its own."""

FOLDS_FILE = "cross-validation.json"
FOLDS_PAGE = "cross-validation.txt"
"""What a folder of runs promises that take turns in holding a part of the data out: for machines and for people."""
