"""Keys and certificates for a federation: a fresh authority, a server, a key per node."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tacit.files import write_bytes

AUTHORITY_FILE = "ca.crt"
SERVER_CERTIFICATE_FILE = "server.crt"
SERVER_KEY_FILE = "server.key"

LOOPBACK_NAMES = ("localhost", "127.0.0.1")


def make_certificates(folder: Path, hosts: Sequence[str] = LOOPBACK_NAMES, days: int = 30) -> None:
    """Write a certificate authority and a server certificate for ``hosts``, unless they are there already.

    Hosts are names or addresses by which nodes reach the server. The authority's private key is not kept, so nobody can
    certify another server with it.
    """
    if (folder / SERVER_KEY_FILE).exists():
        return
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority_name, server_name = _name("Tacit authority"), _name(hosts[0])
    lifetime = timedelta(days=days)
    authority = (
        _certificate(authority_name, authority_name, authority_key.public_key(), lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    names = [_host(host) for host in hosts]
    server = (
        _certificate(server_name, authority_name, server_key.public_key(), lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA384())
    )
    write_bytes(folder / AUTHORITY_FILE, authority.public_bytes(serialization.Encoding.PEM))
    write_bytes(folder / SERVER_CERTIFICATE_FILE, server.public_bytes(serialization.Encoding.PEM))
    pem = server_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_bytes(folder / SERVER_KEY_FILE, pem, mode=0o600)


def make_node_key(path: Path) -> Path:
    """Write a key pair for one node, unless it is there already; return the file of the public key."""
    public = path.with_suffix(".pub")
    if not path.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
        content = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        write_bytes(public, content)
        write_bytes(path, private, mode=0o600)
    return public


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lifetime: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + lifetime)
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
