from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import UnknownModel
from engine.manifest import Manifest
from engine.models.errors import ManifestError, MissingModel
from engine.models.repository import FileWatch, Repository, find_versions, variant_path
from engine.models.verdicts import VerdictFile
from tests.fakes.networks import EMPTY_NETWORK

pytestmark = pytest.mark.unit


def put(folder: Path, version: str, *names: str, toml: str = "") -> None:
    (folder / version).mkdir(parents=True)
    for name in names or ("model.onnx",):
        (folder / version / name).write_bytes(EMPTY_NETWORK)
    if toml:
        (folder / version / "model.toml").write_text(toml)


def make_repository(
    folder: Path | None,
    *,
    policy: tuple[str, ...] = ("latest",),
    variants: tuple[str, ...] = ("fp32",),
    manifest: Manifest | None = None,
    home: Path | None = None,
) -> Repository:
    def resolve() -> Manifest:
        assert manifest is not None
        return manifest

    return Repository(
        "m",
        folder=folder,
        resolve=resolve,
        policy=policy,
        variants=variants,
        verdicts=None if home is None else VerdictFile(home / "verdicts.json"),
    )


def labels(repository: Repository, version: str | None = None) -> list[list[str]]:
    return [[each.version for each in variants] for variants in repository.read(version)]


def test_only_numbers_are_versions_and_ten_comes_after_nine(tmp_path: Path) -> None:
    for name in ("10", "9", "v11", ".12", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "13").write_text("a file")
    assert find_versions(tmp_path) == ["9", "10"]
    assert find_versions(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (("latest",), [["10"]]),
        (("all",), [["2"], ["9"], ["10"]]),
        (("9", "2"), [["2"], ["9"]]),
    ],
)
def test_the_policy_says_which_versions_serve(
    tmp_path: Path, policy: tuple[str, ...], expected: list[list[str]]
) -> None:
    for version in ("9", "2", "10"):
        put(tmp_path, version)
    assert labels(make_repository(tmp_path, policy=policy)) == expected


def test_one_version_can_be_asked_for_whatever_the_policy(tmp_path: Path) -> None:
    put(tmp_path, "1")
    put(tmp_path, "2")
    assert labels(make_repository(tmp_path), "1") == [["1"]]
    with pytest.raises(UnknownModel, match="has no version '3'; it has 1, 2"):
        make_repository(tmp_path).read("3")


def test_a_version_is_named_by_its_folder_and_described_by_its_toml(tmp_path: Path) -> None:
    put(tmp_path, "4", toml='kind = "detect"\nversion = "ignored"\nname = "also-ignored"\n')
    ((manifest,),) = make_repository(tmp_path).read()
    assert (manifest.name, manifest.version, manifest.kind) == ("m", "4", "detect")
    assert manifest.files == {"model": str(tmp_path / "4" / "model.onnx")}


def test_variants_lie_beside_the_model_and_are_named_in_the_version(tmp_path: Path) -> None:
    put(tmp_path, "4", "model.onnx", "model.int8.onnx")
    repository = make_repository(tmp_path, variants=("fp32", "int8"))
    ((original, small),) = repository.read()
    assert (original.version, small.version) == ("4", "4+int8")
    assert small.files["model"].endswith("/4/model.int8.onnx")
    assert variant_path(Path("a/b.onnx"), "fp16") == Path("a/b.fp16.onnx")


def test_a_missing_variant_names_the_file_and_the_command(tmp_path: Path) -> None:
    put(tmp_path, "4")
    with pytest.raises(MissingModel, match=r"model\.fp16\.onnx.*models quantize"):
        make_repository(tmp_path, variants=("fp16",)).read()


def test_an_empty_repository_and_a_broken_file_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(MissingModel, match="holds no version folder"):
        make_repository(tmp_path).read()
    put(tmp_path, "1")
    (tmp_path / "1" / "model.onnx").write_bytes(b"half a fi")
    with pytest.raises(ManifestError, match="not an ONNX model"):
        make_repository(tmp_path).read()


def test_a_model_without_folders_has_the_version_of_its_manifest(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(EMPTY_NETWORK)
    manifest = Manifest(name="x", version="8n", files={"model": str(path)})
    repository = make_repository(None, manifest=manifest)
    assert labels(repository) == [["8n"]]
    before = repository.stamp()
    path.with_name("net.toml").write_text("")
    assert repository.stamp() != before


def accepted(repository: Repository) -> list[str]:
    return [variants[0].version for variants in repository.read_accepted()]


def condemn(folder: Path, home: Path, *versions: str) -> None:
    repository = make_repository(folder, home=home)
    for version in versions:
        repository.reject(version, repository.fingerprint(version), f"{version} was slow")


def test_a_version_that_lost_its_trial_is_passed_over_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    for version in ("1", "2", "3"):
        put(folder, version)
    condemn(folder, tmp_path, "2", "3")
    repository = make_repository(folder, home=tmp_path)
    assert repository.rejected() == {"2": "2 was slow", "3": "3 was slow"}
    assert accepted(repository) == ["1"]
    assert accepted(make_repository(folder, home=tmp_path, policy=("all",))) == ["1"]
    assert accepted(make_repository(folder, home=tmp_path, policy=("2",))) == ["2"]  # by name
    assert labels(repository) == [["3"]]
    condemn(folder, tmp_path, "1")
    assert accepted(repository) == ["3"]  # something has to serve


def test_a_verdict_ends_when_a_file_of_the_version_changes(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    put(folder, "1")
    put(folder, "2")
    condemn(folder, tmp_path, "1", "2")
    (folder / "2" / "model.toml").write_text('kind = "detect"\n')
    repository = make_repository(folder, home=tmp_path)
    assert repository.rejected() == {"1": "1 was slow"}
    assert accepted(repository) == ["2"]


def test_a_verdict_on_files_that_have_changed_meanwhile_does_not_hold(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    put(folder, "2")
    repository = make_repository(folder, home=tmp_path)
    tried = repository.fingerprint("2")
    (folder / "2" / "model.onnx").write_bytes(EMPTY_NETWORK * 2)
    repository.reject("2", tried, "slow")
    assert repository.rejected() == {}


def test_a_version_can_be_forgiven_and_one_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    for version in ("1", "2", "3"):
        put(folder, version)
    condemn(folder, tmp_path, "2", "3")
    repository = make_repository(folder, home=tmp_path)
    repository.forgive("3")
    repository.forgive("1")
    assert repository.rejected() == {"2": "2 was slow"}
    (folder / "2" / "model.onnx").unlink()
    (folder / "2").rmdir()
    repository.reject("3", repository.fingerprint("3"), "again")
    assert list(VerdictFile(tmp_path / "verdicts.json").read()) == ["3"]


def test_where_nothing_can_be_written_a_verdict_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "m"
    put(folder, "1")
    (tmp_path / "home").write_text("a file")
    condemn(folder, tmp_path / "home", "1")
    assert make_repository(folder, home=tmp_path / "home").rejected() == {}
    assert "m: a restart will not know" in caplog.text


def test_a_model_without_folders_or_without_a_file_for_them_has_no_verdicts(
    tmp_path: Path,
) -> None:
    put(tmp_path, "1")
    repository = make_repository(tmp_path)
    repository.reject("1", repository.fingerprint("1"), "slow")
    repository.forgive("1")
    assert repository.rejected() == {}
    manifest = Manifest(name="x", version="8n", files={"model": str(tmp_path / "net.onnx")})
    alone = make_repository(None, manifest=manifest, home=tmp_path)
    alone.reject("8n", alone.fingerprint("8n"), "slow")
    assert (alone.rejected(), accepted(alone)) == ({}, ["8n"])


def test_the_stamp_changes_with_a_new_version_and_with_a_files_content(tmp_path: Path) -> None:
    put(tmp_path, "1")
    repository = make_repository(tmp_path)
    first = repository.stamp()
    assert repository.stamp() == first
    put(tmp_path, "2")
    second = repository.stamp()
    (tmp_path / "2" / "model.onnx").write_bytes(EMPTY_NETWORK * 2)
    assert len({first, second, repository.stamp()}) == 3


def test_a_change_counts_once_it_has_stood_still_for_one_look() -> None:
    old, half, whole = ((("a", 1, 1),), (("a", 2, 2),), (("a", 3, 3),))
    watch = FileWatch(old)
    assert [watch.has_settled(stamp) for stamp in (old, half, whole, whole, whole)] == [
        *(False, False, False, True, False)
    ]


def test_files_that_come_back_to_what_they_were_are_no_change() -> None:
    old, other = ((("a", 1, 1),), ())
    watch = FileWatch(old)
    assert not any(watch.has_settled(stamp) for stamp in (other, old, old, old))
