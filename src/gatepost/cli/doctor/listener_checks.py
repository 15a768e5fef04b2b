"""Checks of how others reach this gateway: its port, its certificate and its open files."""

import datetime
import resource
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gatepost.cli.doctor.finding import Finding, Findings
from gatepost.config import Settings, is_loopback
from gatepost.errors import GatepostError
from gatepost.tls import public_key_pin, read_certificate

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_SOON = datetime.timedelta(days=21)
_FEWEST_FILES = 1024
_CONNECT_SECS = 5.0


def check_port(host: str, port: int) -> Findings:
    """Whether a gateway that is down could listen: nothing else may have the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            yield Finding(
                "ports",
                f"the gateway cannot listen on {host}:{port} ({error.strerror})",
                f"see what has it (ss -ltnp 'sport = :{port}') and stop that, or set listen.port"
                " to a free one",
            )


def check_open_files(settings: Settings, hard: int | None = None) -> Findings:
    if hard is None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= _FEWEST_FILES + settings.limits.max_connections:
        return
    yield Finding(
        "ports",
        f"the system allows {hard} open files, too few for limits.max_connections ="
        f" {settings.limits.max_connections}",
        "raise it (`ulimit -n 16384`, or LimitNOFILE= in the unit file), or lower"
        " limits.max_connections",
        is_advice=True,
    )


def check_exposure(settings: Settings) -> Findings:
    """Other machines are refused without TLS, unless the settings permit it."""
    listen, is_plain = settings.listen, not settings.listen.tls_cert
    if is_loopback(listen.host) or not is_plain:
        return
    if not (listen.allow_plain or settings.room.allow_plain):
        yield Finding(
            "tls",
            f"listen.host is {listen.host}, and without TLS other machines are refused",
            "gatepost init --public --force writes settings with a certificate; then restart",
        )


def check_certificate(settings: Settings, now: datetime.datetime) -> Findings:
    file = settings.named_file(settings.listen.tls_cert)
    key = settings.named_file(settings.listen.tls_key)
    if file is None or key is None:
        return
    try:
        certificate = read_certificate(file)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file, key)
    except (GatepostError, OSError) as error:
        yield Finding(
            "tls",
            f"the certificate {file} cannot be used with the key {key}: {_describe(error)}",
            "name a pair that belongs together in listen.tls_cert and listen.tls_key, or make"
            " one: gatepost init --public --force",
        )
        return
    yield from _check_dates(certificate, file, now)
    yield from _check_names(certificate, file, settings.room.public_url)


def _describe(error: Exception) -> str:
    if isinstance(error, GatepostError):
        return error.message
    return getattr(error, "reason", "") or getattr(error, "strerror", "") or type(error).__name__


def _check_dates(certificate: "Certificate", file: Path, now: datetime.datetime) -> Findings:
    ends = certificate.not_valid_after_utc
    renew = (
        "gatepost init --public --force renews it for the same key, so its pin stays"
        if certificate.issuer == certificate.subject
        else "renew it with its authority"
    )
    if now > ends:
        problem = f"the certificate {file} has expired on {ends:%Y-%m-%d}"
        yield Finding("tls", problem, f"{renew}; then restart the gateway")
    elif now + _SOON > ends:
        problem = f"the certificate {file} expires on {ends:%Y-%m-%d}"
        yield Finding("tls", problem, f"{renew}; then restart the gateway", is_advice=True)
    if now < certificate.not_valid_before_utc:
        begins = certificate.not_valid_before_utc
        yield Finding(
            "tls",
            f"the certificate {file} is not valid before {begins:%Y-%m-%d}",
            "set the clock of this machine: timedatectl set-ntp true",
        )


def _check_names(certificate: "Certificate", file: Path, public_url: str) -> Findings:
    """Only certificates of an authority are verified by name; others by their pin."""
    host = urlsplit(public_url).hostname
    if host is None or certificate.issuer == certificate.subject:
        return
    names = _names_in(certificate)
    if not any(_covers(name, host) for name in names):
        yield Finding(
            "tls",
            f"room.public_url names {host}, and the certificate {file} is for"
            f" {', '.join(names) or 'no name'}",
            "get a certificate for that name, or set room.public_url to a name in it",
        )


def _names_in(certificate: "Certificate") -> list[str]:
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = found.get_values_for_type(x509.IPAddress)
    return [*found.get_values_for_type(x509.DNSName), *map(str, addresses)]


def _covers(name: str, host: str) -> bool:
    if name.startswith("*."):
        return host.partition(".")[2].lower() == name[2:].lower()
    return name.lower() == host.lower()


def check_served_certificate(url: str, file: Path) -> Findings:
    """Whether the running gateway has the certificate that is in the file by now."""
    parts = urlsplit(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        address = (parts.hostname or "", parts.port or 443)
        with (
            socket.create_connection(address, _CONNECT_SECS) as plain,
            context.wrap_socket(plain) as secured,
        ):
            served = secured.getpeercert(binary_form=True) or b""
        is_same = public_key_pin(read_certificate(file)) == _pin_of(served)
    except (OSError, GatepostError):
        return
    if not is_same:
        yield Finding(
            "tls",
            f"the gateway still has another key than the one in {file}: its invites and the room"
            " name the old pin",
            "restart the gateway; peers that joined by the old pin learn the new one from the room",
        )


def _pin_of(encoded: bytes) -> str:
    from cryptography.x509 import load_der_x509_certificate

    return public_key_pin(load_der_x509_certificate(encoded))
