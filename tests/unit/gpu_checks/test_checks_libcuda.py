"""libcuda.so.1 is found by name alone, in the loader's order."""

from gpu_checks.libcuda import configured_folders, find, search_folders, version_of


def test_version_is_in_the_real_files_name():
    assert version_of("libcuda.so.580.159.04") == "580.159.04"
    assert version_of("libcuda.so.535.54") == "535.54"
    assert version_of("libcuda.so.1") is None


def test_loader_path_then_configuration_then_standard(tmp_path):
    conf = tmp_path / "ld.so.conf"
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "b.conf").write_text("/opt/b # comment\n/usr/lib32\n")
    (tmp_path / "d" / "a.conf").write_text("/opt/a\n")
    conf.write_text(f"include {tmp_path}/d/*.conf\ninclude ld.so.conf\n/opt/last\n")
    assert configured_folders(str(conf), 1)[:2] == ["/opt/a", "/opt/b"]
    folders = search_folders("/one:relative::/two", str(conf))
    assert folders[:5] == ["/one", "/two", "/opt/a", "/opt/b", "/opt/last"]
    assert "/usr/lib32" not in folders
    assert "/usr/lib/x86_64-linux-gnu" in folders


def test_no_configuration_names_nothing(tmp_path):
    assert configured_folders(str(tmp_path / "none")) == []


def test_compatibility_library_in_front_of_the_drivers(tmp_path):
    for folder, version in (("compat", "590.48.01"), ("driver", "580.159.04")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"libcuda.so.{version}").touch()
        (tmp_path / folder / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")
    (tmp_path / "same").symlink_to("driver")
    (tmp_path / "dangling").mkdir()
    (tmp_path / "dangling" / "libcuda.so.1").symlink_to("gone")
    found = find([str(tmp_path / name) for name in ("dangling", "compat", "driver", "same")])
    assert [each.version for each in found] == ["590.48.01", "580.159.04"]
    assert found[0].path == str(tmp_path / "compat" / "libcuda.so.1")
