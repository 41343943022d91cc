"""The public layout of the Adult, Bank and KDD99 tables: the columns, and how each becomes numbers.

Every constant here comes from the published description of the data set, or was fixed once and for all, so
that a client can encode its own record without seeing anyone else's. Ranges are clipped; a value outside a
category list encodes as zeros.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Number:
    """A number scaled from [low, high] to [0, 1]; ``log`` scales ln(1 + value − low) instead."""

    name: str
    low: float
    high: float
    log: bool = False


@dataclass(frozen=True)
class Bins:
    """A number replaced by the one-hot code of the interval it falls in: (cut below, cut]."""

    name: str
    cuts: tuple[float, ...]


@dataclass(frozen=True)
class Category:
    """A word replaced by its one-hot code."""

    name: str
    values: tuple[str, ...]


Column = Number | Bins | Category


def _words(name: str, values: str) -> Category:
    return Category(name, tuple(values.split()))


# Numbers are cut at their fifths and capital gains and losses at zero, as in the common 123-column coding
# of Adult, which has the dimension that the paper states.
ADULT: tuple[Column, ...] = (
    Bins("age", (26, 33, 41, 51)),
    _words(
        "workclass",
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked",
    ),
    Bins("fnlwgt", (106_000, 158_000, 196_000, 260_000)),
    _words(
        "education",
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th "
        "Masters 1st-4th 10th Doctorate 5th-6th Preschool",
    ),
    Bins("education-num", (8, 9, 10, 12)),
    _words(
        "marital-status",
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse",
    ),
    _words(
        "occupation",
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
        "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
        "Priv-house-serv Protective-serv Armed-Forces",
    ),
    _words("relationship", "Wife Own-child Husband Not-in-family Other-relative Unmarried"),
    _words("race", "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
    _words("sex", "Female Male"),
    Bins("capital-gain", (0,)),
    Bins("capital-loss", (0,)),
    Bins("hours-per-week", (34, 39, 40, 48)),
    _words(
        "native-country",
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India "
        "Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico "
        "Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary "
        "Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong "
        "Holand-Netherlands",
    ),
)

BANK: tuple[Column, ...] = (
    Number("age", 18, 95),
    _words(
        "job",
        "admin. unknown unemployed management housemaid entrepreneur student blue-collar "
        "self-employed retired technician services",
    ),
    _words("marital", "married divorced single"),
    _words("education", "unknown secondary primary tertiary"),
    _words("default", "no yes"),
    Number("balance", -2_000, 10_000),
    _words("housing", "no yes"),
    _words("loan", "no yes"),
    _words("contact", "unknown telephone cellular"),
    Number("day", 1, 31),
    _words("month", "jan feb mar apr may jun jul aug sep oct nov dec"),
    Number("duration", 0, 1_200),
    Number("campaign", 1, 10),
    Number("pdays", -1, 400),
    Number("previous", 0, 10),
    _words("poutcome", "unknown other failure success"),
)

KDD99: tuple[Column, ...] = (
    Number("duration", 0, 60_000, log=True),
    _words("protocol_type", "icmp tcp udp"),
    _words(
        "service",
        "IRC X11 Z39_50 auth bgp courier csnet_ns ctf daytime discard domain domain_u echo eco_i "
        "ecr_i efs exec finger ftp ftp_data gopher hostnames http http_443 imap4 iso_tsap klogin "
        "kshell ldap link login mtp name netbios_dgm netbios_ns netbios_ssn netstat nnsp nntp ntp_u "
        "other pm_dump pop_2 pop_3 printer private red_i remote_job rje shell smtp sql_net ssh sunrpc "
        "supdup systat telnet tftp_u tim_i time urh_i urp_i uucp uucp_path vmnet whois",
    ),
    _words("flag", "OTH REJ RSTO RSTOS0 RSTR S0 S1 S2 S3 SF SH"),
    Number("src_bytes", 0, 1e9, log=True),
    Number("dst_bytes", 0, 1e9, log=True),
    Number("land", 0, 1),
    Number("wrong_fragment", 0, 3),
    Number("urgent", 0, 3),
    Number("hot", 0, 30),
    Number("num_failed_logins", 0, 5),
    Number("logged_in", 0, 1),
    Number("num_compromised", 0, 1_000, log=True),
    Number("root_shell", 0, 1),
    Number("su_attempted", 0, 2),
    Number("num_root", 0, 1_000, log=True),
    Number("num_file_creations", 0, 30),
    Number("num_shells", 0, 2),
    Number("num_access_files", 0, 8),
    Number("num_outbound_cmds", 0, 1),
    Number("is_host_login", 0, 1),
    Number("is_guest_login", 0, 1),
    Number("count", 0, 511),
    Number("srv_count", 0, 511),
    Number("serror_rate", 0, 1),
    Number("srv_serror_rate", 0, 1),
    Number("rerror_rate", 0, 1),
    Number("srv_rerror_rate", 0, 1),
    Number("same_srv_rate", 0, 1),
    Number("diff_srv_rate", 0, 1),
    Number("srv_diff_host_rate", 0, 1),
    Number("dst_host_count", 0, 255),
    Number("dst_host_srv_count", 0, 255),
    Number("dst_host_same_srv_rate", 0, 1),
    Number("dst_host_diff_srv_rate", 0, 1),
    Number("dst_host_same_src_port_rate", 0, 1),
    Number("dst_host_srv_diff_host_rate", 0, 1),
    Number("dst_host_serror_rate", 0, 1),
    Number("dst_host_srv_serror_rate", 0, 1),
    Number("dst_host_rerror_rate", 0, 1),
    Number("dst_host_srv_rerror_rate", 0, 1),
)
