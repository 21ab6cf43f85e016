"""The self-signed TLS certificate of this computer, which paired devices pin."""

import hashlib
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kvchat.system.files import atomic_write, read_regular_file

_MAX_FILE = 100_000  # bytes
_LIFETIME = timedelta(days=365 * 50)  # pinned by devices, so it must not expire


def server_context(file: Path) -> tuple[ssl.SSLContext, str]:
    """Return a server's TLS context and its certificate's fingerprint, creating key and certificate once.

    Blocking. Raises OSError. A damaged file raises ssl.SSLError or ValueError: a new certificate would have to be
    paired again, so only the user may delete it.
    """
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with atomic_write(file, private=True) as temporary:
            temporary.write_bytes(_make())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(file, password="")  # or OpenSSL would ask for one in the terminal
    text = read_regular_file(file, _MAX_FILE).decode("ascii")
    return context, fingerprint(text[text.index("-----BEGIN CERTIFICATE") :])


def pinned_context(certificate: str) -> ssl.SSLContext:
    """Return a client's TLS context that accepts only this certificate (PEM), whatever the server's name."""
    context = unverified_context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate)
    return context


def unverified_context() -> ssl.SSLContext:
    """Return a client's TLS context for pairing, which verifies the certificate in another way."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def fingerprint(certificate: str) -> str:
    """Return the SHA-256 of a certificate (PEM) in hexadecimal. Raises ValueError."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.strip())).hexdigest()


def _make() -> bytes:
    """Return a new private key and its certificate as PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kvchat")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=365))  # a device's clock may be wrong
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)
