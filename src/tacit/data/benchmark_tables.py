"""Adult, Bank and KDD99: public tables with fixed codings.

Public facts about Adult, Bank Marketing and KDD Cup 1999, from the descriptions published with them.

Ranges of amounts are round numbers: bytes up to 10 MB, seconds up to a day, balances from -5,000 to 20,000.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tacit.data import sources
from tacit.data.schema import Category, Column, Number, Schema, Target
from tacit.data.table_file import Table, parse_rows, read_columns, read_gzip, row_keys
from tacit.data.table_task import table_task
from tacit.data.task import Task, held_out_mask
from tacit.errors import FileError


def _one_of(values: str, *, missing: bool = False, ordered: bool = False) -> Category:
    return Category(tuple(values.split()), ordered=ordered, missing=missing)


def _number(low: float, high: float, *, log: bool = False) -> Number:
    return Number(low, high, "log" if log else "linear", missing=False)


_COUNTRIES = (
    "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan Greece "
    "South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
    "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand "
    "Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands"
)

ADULT: dict[str, Column] = {
    "age": _number(17, 90),
    "workclass": _one_of(
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked",
        missing=True,
    ),
    "fnlwgt": _number(10_000, 1_500_000, log=True),
    "education": _one_of(
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters "
        "1st-4th 10th Doctorate 5th-6th Preschool"
    ),
    "education-num": _number(1, 16),
    "marital-status": _one_of(
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse"
    ),
    "occupation": _one_of(
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
        "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv "
        "Armed-Forces",
        missing=True,
    ),
    "relationship": _one_of("Wife Own-child Husband Not-in-family Other-relative Unmarried"),
    "race": _one_of("White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
    "sex": _one_of("Female Male"),
    "capital-gain": _number(0, 99_999, log=True),
    "capital-loss": _number(0, 4_500, log=True),
    "hours-per-week": _number(1, 99),
    "native-country": _one_of(_COUNTRIES, missing=True),
}

BANK: dict[str, Column] = {
    "age": _number(18, 95),
    "job": _one_of(
        "admin. blue-collar entrepreneur housemaid management retired self-employed services student "
        "technician unemployed unknown"
    ),
    "marital": _one_of("divorced married single"),
    "education": _one_of("unknown primary secondary tertiary"),
    "default": _one_of("no yes"),
    "balance": _number(-5_000, 20_000),
    "housing": _one_of("no yes"),
    "loan": _one_of("no yes"),
    "contact": _one_of("unknown telephone cellular"),
    "day": _number(1, 31),
    "month": _one_of("jan feb mar apr may jun jul aug sep oct nov dec"),
    "duration": _number(0, 3600, log=True),
    "campaign": _number(1, 60, log=True),
    "pdays": _number(-1, 900, log=True),
    "previous": _number(0, 60, log=True),
    "poutcome": _one_of("unknown other failure success"),
}

_SERVICES = (
    "aol auth bgp courier csnet_ns ctf daytime discard domain domain_u echo eco_i ecr_i efs exec finger "
    "ftp ftp_data gopher harvest hostnames http http_2784 http_443 http_8001 imap4 IRC iso_tsap klogin "
    "kshell ldap link login mtp name netbios_dgm netbios_ns netbios_ssn netstat nnsp nntp ntp_u other "
    "pm_dump pop_2 pop_3 printer private red_i remote_job rje shell smtp sql_net ssh sunrpc supdup systat "
    "telnet tftp_u tim_i time urh_i urp_i uucp uucp_path vmnet whois X11 Z39_50"
)
_COUNT = _number(0, 1_000, log=True)
_FLAG = _number(0, 1)
_RATE = _number(0, 1)
_BYTES = _number(0, 10_000_000, log=True)
_OF_511 = _number(0, 511)
_OF_255 = _number(0, 255)

KDD99: dict[str, Column] = {
    "duration": _number(0, 86_400, log=True),
    "protocol_type": _one_of("tcp udp icmp"),
    "service": _one_of(_SERVICES),
    "flag": _one_of("OTH REJ RSTO RSTOS0 RSTR S0 S1 S2 S3 SF SH"),
    "src_bytes": _BYTES,
    "dst_bytes": _BYTES,
    "land": _FLAG,
    "wrong_fragment": _number(0, 3),
    "urgent": _COUNT,
    "hot": _COUNT,
    "num_failed_logins": _COUNT,
    "logged_in": _FLAG,
    "num_compromised": _COUNT,
    "root_shell": _FLAG,
    "su_attempted": _FLAG,
    "num_root": _COUNT,
    "num_file_creations": _COUNT,
    "num_shells": _COUNT,
    "num_access_files": _COUNT,
    "num_outbound_cmds": _COUNT,
    "is_host_login": _FLAG,
    "is_guest_login": _FLAG,
    "count": _OF_511,
    "srv_count": _OF_511,
    "serror_rate": _RATE,
    "srv_serror_rate": _RATE,
    "rerror_rate": _RATE,
    "srv_rerror_rate": _RATE,
    "same_srv_rate": _RATE,
    "diff_srv_rate": _RATE,
    "srv_diff_host_rate": _RATE,
    "dst_host_count": _OF_255,
    "dst_host_srv_count": _OF_255,
    "dst_host_same_srv_rate": _RATE,
    "dst_host_diff_srv_rate": _RATE,
    "dst_host_same_src_port_rate": _RATE,
    "dst_host_srv_diff_host_rate": _RATE,
    "dst_host_serror_rate": _RATE,
    "dst_host_srv_serror_rate": _RATE,
    "dst_host_rerror_rate": _RATE,
    "dst_host_srv_rerror_rate": _RATE,
}


_HASH_SPLIT = "Held-out rows: a fixed hash of each row's contents, so that equal rows stay together."


def load_adult(data_dir: Path, download: bool) -> Task:
    """Adult (census 1994): does a person earn over 50,000 dollars? The published test part is held out."""
    train, test = (
        _read_adult(sources.find_or_fetch(data_dir, f"{source.file}.gz", source, download=download))
        for source in (sources.ADULT_TRAIN, sources.ADULT_TEST)
    )
    both = replace(
        train,
        columns={name: train.column(name) + test.column(name) for name in train.columns},
        rows=train.rows + test.rows,
    )
    return table_task(
        "adult",
        both,
        Schema(Target("income", "binary", ("<=50K", ">50K")), ADULT),
        np.arange(both.rows) >= train.rows,
        public_sources=(
            "Categories and ranges: adult.names, published with the data.",
            "Held-out rows: the test part that was published with the data.",
        ),
    )


def _read_adult(path: Path) -> Table:
    """Read adult.data or adult.test; the latter begins with a remark and ends its labels with a full stop."""
    try:
        lines = read_gzip(path).decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not the Adult table.") from error
    rows = [line.rstrip().removesuffix(".") for line in lines if not line.startswith("|")]
    return parse_rows(path, rows, ",", [*ADULT, "income"])


def load_bank(data_dir: Path, download: bool) -> Task:
    """Bank Marketing: does a called customer subscribe? ``duration``, known only after the call, is among the
    features, as in the studies that use this table.
    """
    path = sources.find_or_fetch(data_dir, "tabular/bank-full.csv.gz", sources.BANK, download=download)
    table = read_columns(path, separator=";")
    return table_task(
        "bank",
        table,
        Schema(Target("y", "binary", ("no", "yes")), BANK),
        held_out_mask(row_keys(table), 0.2),
        public_sources=(
            "Categories: bank-names.txt, published with the data; ranges: round numbers.",
            _HASH_SPLIT,
        ),
    )


def load_kdd99(data_dir: Path, download: bool) -> Task:
    """KDD Cup 1999, 10 percent: is a network connection an attack?"""
    path = sources.find_or_fetch(data_dir, sources.KDD99.file, sources.KDD99, download=download)
    table = read_columns(path, separator=",", names=[*KDD99, "connection"])
    answers = ["normal" if cell == "normal." else "attack" for cell in table.column("connection")]
    return table_task(
        "kdd99",
        replace(table, columns={**table.columns, "connection": answers}),
        Schema(Target("connection", "binary", ("normal", "attack")), KDD99),
        held_out_mask(row_keys(table), 0.2),
        public_sources=(
            "Columns: kddcup.names, published with the data; services and flags: the value lists of NSL-KDD; "
            "ranges: round numbers.",
            _HASH_SPLIT,
        ),
    )
