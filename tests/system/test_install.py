# SPDX-License-Identifier: Apache-2.0
"""The set-up script's reading of apt sources, and mount.wsmfs's of its arguments."""

import os
import pathlib
import shutil
import subprocess

import pytest

import harness

BASE = pathlib.Path(__file__).resolve().parents[2]
SETUP = BASE / "mount-helpers/setup"
HELPER = BASE / "mount-helpers/mount.wsmfs"


def derive(path, newer="questing", here="noble"):
    done = subprocess.run(
        [SETUP, "derive", newer, here, path], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def in_list(tmp_path, text):
    path = tmp_path / "a.list"
    path.write_text(text)
    return derive(path).strip()


def in_sources(tmp_path, text):
    path = tmp_path / "a.sources"
    path.write_text(text)
    return dict(
        line.split(": ", 1) for line in derive(path).splitlines() if ": " in line and line[0] != " "
    )


@pytest.mark.parametrize(
    "line, expected",
    [
        ("deb http://a.test/u noble main", "deb-src http://a.test/u questing main"),
        ("deb\thttp://a.test/u  noble   universe main # x", "deb-src http://a.test/u questing main"),
        ("deb [ arch=amd64 ] http://a.test/u noble main", "deb-src http://a.test/u questing main"),
        (
            "deb [arch=amd64,i386 signed-by=/k.gpg] http://a.test/u noble main",
            "deb-src [ signed-by=/k.gpg ] http://a.test/u questing main",
        ),
        ("deb mirror+file:/etc/m.txt noble main", "deb-src mirror+file:/etc/m.txt questing main"),
        ("deb-src http://a.test/u noble main", ""),
        ("# deb http://a.test/u noble main", ""),
        ("deb http://a.test/u noble-updates main", ""),
        ("deb http://a.test/u noble universe", ""),
        ("deb http://a.test/u jammy main", ""),
        ("deb cdrom:[disc]/ noble main", ""),
        ("deb http://a.test/flat ./", ""),
        ("", ""),
    ],
)
def test_a_one_line_source_gives_an_entry_for_the_newer_release(tmp_path, line, expected):
    assert in_list(tmp_path, line + "\n") == expected


def test_of_several_lines_the_first_that_fits_is_taken(tmp_path):
    text = "deb http://s.test/u noble-security main\ndeb http://a.test/u noble main\ndeb http://b.test/u noble main\n"
    assert in_list(tmp_path, text) == "deb-src http://a.test/u questing main"


def test_no_entry_switches_the_checking_of_signatures_off(tmp_path):
    line = "deb [trusted=yes allow-insecure=yes signed-by=/k] http://a.test/u noble main\n"
    assert in_list(tmp_path, line) == "deb-src [ signed-by=/k ] http://a.test/u questing main"
    stanza = "Types: deb\nURIs: http://a.test/\nSuites: noble\nComponents: main\nTrusted: yes\nAllow-Insecure: yes\n"
    assert set(in_sources(tmp_path, stanza)) == {"Types", "URIs", "Suites", "Components"}


def test_a_deb822_stanza_keeps_its_fields(tmp_path):
    fields = in_sources(
        tmp_path,
        "Types: deb deb-src\n# a comment inside\nURIs: http://a.test/u\nSuites: noble noble-updates\n"
        "Components: universe main\nArchitectures: amd64\nSigned-By: /k.gpg\n",
    )
    assert fields == {
        "Types": "deb-src",
        "URIs": "http://a.test/u",
        "Suites": "questing",
        "Components": "main",
        "Signed-By": "/k.gpg",
    }


def test_a_deb822_key_block_is_kept_whole(tmp_path):
    path = tmp_path / "a.sources"
    block = "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n -----END PGP PUBLIC KEY BLOCK-----\n"
    path.write_text("Types: deb\nURIs: http://a.test/u\nSuites: noble\nComponents: main\n" + block)
    assert block in derive(path)


@pytest.mark.parametrize(
    "change",
    [
        "Enabled: no\nTypes: deb\nURIs: http://a.test/\nSuites: noble\nComponents: main\n",
        "Types: deb-src\nURIs: http://a.test/\nSuites: noble\nComponents: main\n",
        "Types: deb\nURIs: http://a.test/\nSuites: noble-security\nComponents: main\n",
        "Types: deb\nURIs: http://a.test/\nSuites: noble\nComponents: universe\n",
        "Types: deb\nURIs: http://a.test/\nSuites: noble\n",
    ],
)
def test_a_deb822_stanza_that_does_not_fit_is_passed_over(tmp_path, change):
    good = "Types: deb\nURIs: http://b.test/\nSuites: noble\nComponents: main\n"
    assert in_sources(tmp_path, change + "\n\n" + good)["URIs"] == "http://b.test/"


@pytest.fixture
def helper(tmp_path):
    """Runs a copy of mount.wsmfs beside a wsmfs that prints its arguments."""
    shutil.copy(HELPER, tmp_path / "mount.wsmfs")
    program = tmp_path / "wsmfs"
    program.write_text('#!/bin/sh\nprintf "[%s]\\n" "$@"\nexit 1\n')
    program.chmod(0o755)

    def run(*arguments, env=None):
        done = subprocess.run(
            [tmp_path / "mount.wsmfs", *arguments], capture_output=True, text=True, timeout=60, env=env
        )
        return done.returncode, done.stdout.splitlines()

    return run


def test_the_helper_hands_on_source_and_directory_and_makes_32_of_a_failure(helper):
    assert helper("local:/a b", "/mnt/c d") == (32, ["[local:/a b]", "[/mnt/c d]"])


@pytest.mark.parametrize(
    "options, kept",
    [
        ("rw", "rw"),
        ("defaults", None),
        ("defaults,allow_other,ttl=1h", "allow_other,ttl=1h"),
        ("noauto,user,users,owner,nofail,_netdev,comment=a b,x-systemd.automount,X-mount.mkdir", None),
        ("user=alice,nosuid,nodev", "nosuid,nodev"),
        ("config=/a\\,b,users=listed", "config=/a\\,b,users=listed"),
        ("a=\\,defaults,auto", "a=\\,defaults"),
        (",,ttl=2,,", "ttl=2"),
    ],
)
def test_the_helper_drops_the_words_of_others(helper, options, kept):
    expected = ["[local:]", "[/m]"] + (["[-o]", f"[{kept}]"] if kept else [])
    assert helper("local:", "/m", "-o", options)[1] == expected


def test_the_helper_takes_the_arguments_of_mount(helper):
    words = helper("local:", "/m", "-n", "-s", "-t", "fuse.wsmfs", "-o", "rw", "-o", "ttl=1", "-r")[1]
    assert words == ["[local:]", "[/m]", "[-o]", "[rw,ttl=1,ro]"]


def test_the_helper_only_checks_when_faked(helper):
    assert helper("local:", "/m", "-f") == (1, ["[local:]", "[/m]", "[--check]"])


def test_the_helper_says_what_it_runs_when_verbose(helper):
    assert helper("local:", "/m", "-v")[1][0].endswith("wsmfs local: /m")


@pytest.mark.parametrize("words", [[], ["local:"], ["local:", "/m", "extra"], ["local:", "/m", "-Q"], ["-o", "rw"]])
def test_the_helper_refuses_wrong_usage(helper, words):
    assert helper(*words) == (1, [])


def test_the_helper_makes_no_option_of_a_directory_name(helper):
    assert helper("local:", "-f")[1] == ["[local:]", "[./-f]"]


def test_the_helper_works_with_an_empty_environment(helper):
    assert helper("local:", "/m", env={})[0] == 32


def test_the_helper_says_so_when_there_is_no_wsmfs(tmp_path):
    shutil.copy(HELPER, tmp_path / "mount.wsmfs")
    env = {"PATH": "/nonexistent"}
    if any(os.access(f"{d}/wsmfs", os.X_OK) for d in ("/usr/local/bin", "/usr/bin", "/usr/local/sbin", "/usr/sbin")):
        pytest.skip("wsmfs is installed on this machine")
    done = subprocess.run([tmp_path / "mount.wsmfs", "local:", "/m"], capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 2 and "no program wsmfs" in done.stderr


# ── the whole way through mount(8) ──────────────────────────────────────────────────────────

THROUGH_MOUNT = r"""
set -eu
# In a mount namespace of its own, /sbin has the helper; nothing of this machine changes.
mkdir lower
cp "$1/mount-helpers/mount.wsmfs" lower/
ln -s mount.wsmfs lower/mount.fuse.wsmfs
ln -s "$1/fs/wsmfs" lower/wsmfs
mount -t overlay -o "lowerdir=$PWD/lower:$(readlink -f /sbin)" overlay "$(readlink -f /sbin)"
shift
"$@"
"""


@pytest.fixture
def in_namespace(workdir):
    """Runs a script where mount(8) finds the helper; $BASE and $MNT are fresh directories."""
    if subprocess.run(["unshare", "-m", "--propagation", "private", "true"], capture_output=True).returncode:
        pytest.skip("no private mount namespace here, as in a plain chroot")

    def run(script, **more):
        env = dict(harness.environment(), BASE=f"{workdir}/base", MNT=f"{workdir}/mnt", TOP=workdir)
        os.makedirs(env["MNT"], exist_ok=True)
        words = ["unshare", "-m", "--propagation", "private", "sh", "-c", THROUGH_MOUNT, "sh"]
        done = subprocess.run(
            [*words, harness.BUILD, "bash", "-euc", script], cwd=workdir, env=env, text=True,
            capture_output=True, timeout=120, stdin=subprocess.DEVNULL, **more,
        )
        if "overlay" in done.stderr and done.returncode == 32:
            pytest.skip("no overlay file system here")
        return done

    return run


# Waits for the daemon's end: umount returns before it.
GONE = """
gone() { for i in $(seq 600); do pgrep -f "wsmfs local:$BASE " >/dev/null || return 0; sleep 0.1; done; return 1; }
"""
OPTIONS = "state_dir=$TOP/state"


@pytest.mark.root
@pytest.mark.parametrize("kind", ["wsmfs", "fuse.wsmfs"])
def test_mount_mounts_by_type_and_returns_when_the_mount_answers(in_namespace, kind):
    done = in_namespace(
        GONE + f"""
        mount -t {kind} "local:$BASE" "$MNT" -o {OPTIONS},defaults,x-mine,ttl=30m
        mkdir -p "$MNT/alice/coder/s1/d"
        cat "$MNT/alice/coder/s1/.wsm/state"
        findmnt -n -o FSTYPE,SOURCE "$MNT"
        umount "$MNT"
        gone
        """
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[0] == "ready"
    assert done.stdout.splitlines()[1].split()[0] == "fuse.wsmfs"


@pytest.mark.root
def test_a_line_of_fstab_mounts_and_fusermount3_unmounts(in_namespace):
    done = in_namespace(
        GONE + f"""
        echo "local:$BASE $MNT wsmfs noauto,nofail,_netdev,{OPTIONS},allow_other,x-systemd.automount 0 0" > fstab
        mount -T "$PWD/fstab" "$MNT"
        ls "$MNT/alice/coder/s1"
        fusermount3 -u "$MNT"
        gone
        """
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.root
def test_mount_replaces_a_dead_mount(in_namespace):
    done = in_namespace(
        GONE + f"""
        mount -t wsmfs "local:$BASE" "$MNT" -o {OPTIONS}
        echo hello > "$MNT/alice/coder/s1/f"
        kill -9 $(pgrep -f "wsmfs local:$BASE ")
        gone
        mount -t wsmfs "local:$BASE" "$MNT" -o {OPTIONS}
        cat "$MNT/alice/coder/s1/f"
        umount "$MNT"
        gone
        """
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "hello\n"


@pytest.mark.root
@pytest.mark.parametrize(
    "words, sentence", [("ttl=soon", "ttl"), ("no_such_option=1", "no_such_option"), ("auto_unmount", "auto_unmount")]
)
def test_a_mount_that_is_refused_is_status_32_with_a_sentence(in_namespace, words, sentence):
    done = in_namespace(f'mount -t wsmfs "local:$BASE" "$MNT" -o {OPTIONS},{words}')
    assert done.returncode == 32
    assert sentence in done.stderr


@pytest.mark.root
def test_a_fake_mount_mounts_nothing(in_namespace):
    done = in_namespace(
        f"""
        mount -f -t wsmfs "local:$BASE" "$MNT" -o {OPTIONS}
        ! findmnt "$MNT"
        [ ! -e "$BASE" ]
        [ ! -e "$TOP/state" ]
        """
    )
    assert done.returncode == 0, done.stdout + done.stderr
