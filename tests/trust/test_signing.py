"""Bundles of OpenSSF model-signing: verdicts equal its own library's."""

import contextlib
import datetime as dt
import io
import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import weightmap as wm
from weightmap import cli, trust
from weightmap.trust.checking import check_all, resolve_trust
from weightmap.trust.lists import write_sums

pytest.importorskip("OpenSSL")
verifying = pytest.importorskip("model_signing.verifying")
signing, hashing = pytest.importorskip("model_signing.signing"), pytest.importorskip("model_signing.hashing")
from cryptography import x509  # noqa: E402
from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402

# More of them: WEIGHTMAP_MUTANTS=10000.
MUTANTS = int(os.environ.get("WEIGHTMAP_MUTANTS", "150"))
NAME = "model.safetensors"


def private(path, key):
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(key.private_bytes(*form))


def certificate(name, key, issuer=None, *, authority=False):
    """A certificate of `name`, by another certificate and its key or by itself."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    by, by_key = (subject, key) if issuer is None else (issuer[0].subject, issuer[1])
    unused = "content_commitment key_encipherment data_encipherment key_agreement encipher_only decipher_only"
    usage = dict.fromkeys(unused.split(), False)
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(3650))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=authority, crl_sign=authority, **usage), critical=True
        )
    )
    if not authority:
        made = made.add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
        made = made.add_extension(x509.SubjectAlternativeName([x509.RFC822Name("a@example.org")]), critical=False)
    return made.sign(by_key, hashes.SHA256())


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    for name in ("own", "other"):
        key = ec.generate_private_key(ec.SECP256R1())
        private(folder / f"{name}.pem", key)
        form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        (folder / f"{name}.pub").write_bytes(key.public_key().public_bytes(*form))
        root_key = ec.generate_private_key(ec.SECP256R1())
        root = certificate(f"root of {name}", root_key, authority=True)
        (folder / f"{name}.root").write_bytes(root.public_bytes(serialization.Encoding.PEM))
        made = certificate("signer", key, (root, root_key))
        (folder / f"{name}.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return folder


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    wm.save(folder / NAME, {"w": np.arange(20, dtype=np.float32)})
    (folder / "config.json").write_text("{}")
    (folder / "sub" / "vocab.txt").write_text("a\nb\n")
    (folder / ".gitattributes").write_text("*.safetensors lfs\n")
    return folder


def theirs(model, bundle, keys, *, by_key=True):
    config = verifying.Config()
    if by_key:
        config.use_elliptic_key_verifier(public_key=keys / "own.pub")
    else:
        config.use_certificate_verifier(certificate_chain=[keys / "own.root"])
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            config.verify(model, bundle)
    except Exception:  # noqa: BLE001 - whatever it says, it refuses
        return False
    return True


def given(bundle, keys, *, by_key=True):
    how = {"key": keys / "own.pub"} if by_key else {"certificate": keys / "own.root"}
    return trust.signature(bundle, **how)


def ours(model, bundle, keys, *, by_key=True):
    try:
        check_all(resolve_trust(given(bundle, keys, by_key=by_key), model), model)
    except (wm.TrustError, wm.UnsupportedError, OSError):
        return False
    return True


def signed(model, keys, *, by_key=True):
    chain = {} if by_key else {"certificate": keys / "own.crt", "chain": [keys / "own.root"]}
    return Path(trust.sign(model, key=keys / "own.pem", **chain))


def changed_file(model, bundle, rng):
    path = rng.choice([model / NAME, model / "config.json", model / "sub" / "vocab.txt"])
    raw = bytearray(path.read_bytes())
    raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    path.write_bytes(raw)


def ignored_file(model, bundle, rng):
    (model / ".git" / "x").mkdir(parents=True)
    (model / ".git" / "x" / "y").write_text("z")
    (model / ".gitattributes").write_text("other")


def a_link(model, bundle, rng):
    at = rng.choice([model, model / "sub"])
    (at / "link").symlink_to(rng.choice([model / NAME, "nowhere", model / "sub"]))


def damaged_bytes(model, bundle, rng):
    raw = bytearray(bundle.read_bytes())
    at = rng.randrange(len(raw))
    how = rng.randrange(4)
    if how == 0:
        raw[at] ^= 1 << rng.randrange(8)
    elif how == 1:
        del raw[at:]
    elif how == 2:
        del raw[at : at + rng.randrange(1, 50)]
    else:
        raw[at:at] = rng.randbytes(3)
    bundle.write_bytes(raw)


def changed_json(model, bundle, rng):
    """Another value, or none, somewhere in the bundle."""
    document = json.loads(bundle.read_bytes())
    places = []

    def walk(value):
        for key in value if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            if isinstance(value[key], (dict, list)):
                walk(value[key])

    walk(document)
    value, key = rng.choice(places)
    if rng.random() < 0.3:
        del value[key]
    else:
        value[key] = rng.choice([None, "", "AAAA", 3, [], {}, value[key], [value[key]], "x" * 100])
    bundle.write_text(json.dumps(document))


CHANGES = [
    changed_file,
    ignored_file,
    a_link,
    damaged_bytes,
    changed_json,
    lambda model, _, rng: (model / rng.choice(["new", "sub/new", ".hidden", "model.sig2"])).write_text("x"),
    lambda model, _, rng: (model / rng.choice([NAME, "config.json", "sub/vocab.txt"])).unlink(),
    lambda model, _, rng: (model / "config.json").rename(model / rng.choice(["config.jso", ".gitignore", "sub/c"])),
    lambda model, _, rng: os.mkfifo(model / rng.choice(["fifo", "sub/fifo"])),
    lambda model, _, rng: shutil.copy(model / "config.json", model / NAME),
    lambda *_: None,
    damaged_bytes,
    changed_json,
]


@pytest.mark.parametrize("by_key", [True, False])
def test_verdicts_equal_to_those_of_model_signing(model, tmp_path, keys, by_key):
    bundle = signed(model, keys, by_key=by_key)
    assert theirs(model, bundle, keys, by_key=by_key)
    assert ours(model, bundle, keys, by_key=by_key)
    kept = tmp_path / "kept"
    shutil.copytree(model, kept, symlinks=True)
    accepted = refused = 0
    for seed in range(MUTANTS):
        rng = random.Random(seed)
        CHANGES[seed % len(CHANGES)](model, bundle, rng)
        expected, actual = theirs(model, bundle, keys, by_key=by_key), ours(model, bundle, keys, by_key=by_key)
        assert actual is expected, seed
        accepted, refused = accepted + expected, refused + (not expected)
        shutil.rmtree(model)
        shutil.copytree(kept, model, symlinks=True)
    assert accepted
    assert refused


@pytest.mark.parametrize("target", ["model.safetensors", "link.sig", "own.pem", "own.crt", "own.root"])
def test_a_bundle_never_replaces_an_input(model, keys, tmp_path, target):
    (model / "link.sig").symlink_to(NAME)
    for name in ("own.pem", "own.crt", "own.root"):
        shutil.copy(keys / name, model)
    before = (model / target).read_bytes()
    options = {"key": model / "own.pem", "certificate": model / "own.crt", "chain": [model / "own.root"]}
    with pytest.raises(wm.TargetError, match="this file is an input, and would be replaced: choose another target"):
        trust.sign(model / NAME, model / target, **options)
    assert (model / target).read_bytes() == before


def test_a_model_is_opened_by_its_signature(model, keys):
    bundle = signed(model, keys)
    for mode in ("mmap", "copy", "sealed"):
        with wm.open(model, trust=given(bundle, keys), mode=mode) as file:
            assert file["w"][3] == 3
    assert (
        wm.verify(wm.open(model, trust=given(bundle, keys))).checks[0] == f"SHA-256 of 3 files as signed in '{bundle}'"
    )
    with pytest.raises(wm.TrustError, match="signature does not hold: Key mismatch"):
        wm.open(model, trust=trust.signature(bundle, key=keys / "other.pub"))
    changed_file(model, bundle, random.Random(2))
    with pytest.raises(wm.TrustError, match="its digest is"):
        wm.verify(wm.open(model, trust=given(bundle, keys)))
    with pytest.raises(FileNotFoundError):
        wm.open(model, trust=trust.signature(model / "none.sig", key=keys / "own.pub"))
    with pytest.raises(FileNotFoundError):
        wm.open(model, trust=trust.signature(bundle, key=keys / "none.pub"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no FIFOs")
def test_a_key_that_has_no_end_is_refused(model, keys, tmp_path):
    """The library would wait for a FIFO, and read a device into memory."""
    os.mkfifo(tmp_path / "fifo")
    bundle = signed(model, keys)
    for key in (tmp_path / "fifo", "/dev/zero"):
        with pytest.raises(wm.NotRegularFileError, match="not a regular file: only regular files can be opened"):
            trust.sign(model, tmp_path / "a.sig", key=key)
        with pytest.raises(wm.NotRegularFileError, match="not a regular file"):
            wm.open(model, trust=trust.signature(bundle, key=key))


def test_an_empty_path_is_no_model(model, keys, monkeypatch):
    """It is not the working directory."""
    monkeypatch.chdir(model)
    with pytest.raises(FileNotFoundError):
        trust.sign("", key=keys / "own.pem")
    assert not (model / "model.sig").exists()


def test_the_identity_of_the_signer(model, keys):
    bundle = signed(model, keys, by_key=False)
    for identity in ("signer", "a@example.org"):
        wm.open(model, trust=trust.signature(bundle, certificate=[keys / "own.root"], identity=identity)).close()
    with pytest.raises(wm.TrustError, match=r"identity of the signer is 'signer', 'a@example.org', expected 'b'"):
        wm.open(model, trust=trust.signature(bundle, certificate=keys / "own.root", identity="b"))
    with pytest.raises(wm.TrustError, match="does not hold"):
        wm.open(model, trust=trust.signature(bundle, certificate=keys / "other.root"))
    for wrong in ({}, {"key": "k", "certificate": "c"}, {"key": "k", "identity": "i"}):
        with pytest.raises(TypeError):
            trust.signature(bundle, **wrong)


def test_a_signature_beside_recorded_digests_needs_none(model, keys, capsys):
    """As docs/trust.md has it: sign, verify the signature, verify what is recorded. A listed signature is compared."""
    write_sums(str(model))
    bundle = signed(model, keys)
    assert cli.main(["verify", str(model), "--trust", str(bundle), "--key", str(keys / "own.pub")]) == 0
    assert cli.main(["verify", str(model), "--trust", "recorded"]) == 0
    assert "SHA-256 of 3 files as recorded" in capsys.readouterr().out
    write_sums(str(model))
    assert cli.main(["verify", str(model), "--trust", "recorded"]) == 0
    assert "SHA-256 of 4 files as recorded" in capsys.readouterr().out
    damaged_bytes(model, bundle, random.Random(3))
    assert cli.main(["verify", str(model), "--trust", "recorded"]) == 1
    assert "model.sig: the file does not match" in capsys.readouterr().out


def test_manifests_over_pieces_are_refused(model, keys):
    config = signing.Config().use_elliptic_key_signer(private_key=keys / "own.pem")
    config.set_hashing_config(hashing.Config().use_shard_serialization().set_ignored_paths(paths=["model.sig"]))
    config.sign(model, model / "model.sig")
    with pytest.raises(wm.UnsupportedError, match="shards"):
        wm.open(model, trust=given(model / "model.sig", keys))


def test_commands(model, keys, capsys):
    assert cli.main(["sign", str(model), "--key", str(keys / "own.pem")]) == 0
    bundle = str(model / "model.sig")
    assert cli.main(["verify", str(model), "--trust", bundle, "--key", str(keys / "own.pub")]) == 0
    assert cli.main(["verify", str(model), "--trust", bundle, "--key", str(keys / "other.pub")]) == 1
    assert cli.main(["verify", str(model), "--trust", "recorded"]) == 1
    assert "this file has no digest beside it" in capsys.readouterr().out
    assert cli.main(["verify", str(model), "--trust", bundle]) == 1
    assert capsys.readouterr().out.endswith("; --key PEM checks a signature\n")
    with pytest.raises(wm.TrustError, match=r"; weightmap\.trust\.signature\(path, key=\.\.\.\) checks a signature$"):
        wm.open(model, trust=bundle)
    assert cli.main(["verify", str(model), "--key", "x"]) == 2
    signed(model, keys, by_key=False)
    by = ["verify", str(model), "--trust", bundle, "--certificate"]
    assert cli.main([*by, str(keys / "own.root")]) == 0
    assert cli.main([*by, str(keys / "own.root"), "--identity", "a@example.org"]) == 0
    assert cli.main([*by, str(keys / "own.root"), "--identity", "b"]) == 1
    assert "identity of the signer is 'signer', 'a@example.org', expected 'b'" in capsys.readouterr().out
    assert cli.main([*by, str(keys / "other.root")]) == 1
    assert cli.main(["sign", str(model), "--key", str(keys / "own.pub")]) == 3
    capsys.readouterr()
    assert cli.main(["sign", f"{model}2", "--key", str(keys / "own.pem")]) == 4
    assert "No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("links", [1, 2], ids=["to blobs", "by way of blobs to a store"])
def test_a_snapshot_of_links_is_signed_and_verified(model, keys, tmp_path, capsys, links):
    """The error's remedy signs it. `open` compares what it reads, `verify` and the command compare all files alike."""
    for file in sorted(path for path in model.rglob("*") if path.is_file()):
        for step in range(links):
            target = tmp_path / f"{file.name}.{step}"
            file.rename(target)
            file.symlink_to(target)
            file = target  # noqa: PLW2901
    key, bundle = keys / "own.pem", tmp_path / "b.sig"
    with pytest.raises(wm.errors.TrustError, match="; allow_symlinks=True signs the files that links lead to"):
        trust.sign(model, tmp_path / "a.sig", key=key)
    trust.sign(model, tmp_path / "a.sig", key=key, allow_symlinks=True)
    argv = ["sign", str(model), "--key", str(key), "--out", str(bundle)]
    assert cli.main(argv) == 3
    assert "; --allow-symlinks signs the files that links lead to" in capsys.readouterr().err
    assert cli.main([*argv, "--allow-symlinks"]) == 0

    def verified():
        said = cli.main(["verify", str(model), "--trust", str(bundle), "--key", str(keys / "own.pub")])
        assert said == (0 if ours(model, bundle, keys) else 1)
        return said == 0

    assert verified()
    (model / "more").symlink_to(model / NAME)
    assert not verified()
    (model / "more").rename(model / "config.json")
    assert not verified()
    wm.open(model, trust=given(bundle, keys)).close()
    (model / NAME).write_bytes((model / NAME).read_bytes()[:-1] + b"\1")
    assert not verified()
    with pytest.raises(wm.TrustError, match="its digest is"):
        wm.open(model, trust=given(bundle, keys))
