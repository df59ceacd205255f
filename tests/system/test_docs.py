# SPDX-License-Identifier: Apache-2.0
"""The manual, the completion and the program speak of the same options."""

import os
import pathlib
import re
import subprocess

import pytest

BASE = pathlib.Path(__file__).resolve().parents[2]
MANUAL = BASE / "docs/man/wsmfs.8"
COMPLETION = BASE / "mount-helpers/completion/wsmfs"


@pytest.fixture(scope="module")
def help_text():
    program = pathlib.Path(os.environ["WSMFS_BUILD"]) / "fs/wsmfs"
    done = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def options(help_text):
    """name -> (values, text) of each option that --help lists."""
    found = {}
    for line in help_text.splitlines():
        match = re.match(r"\s+([a-z][a-z_]+)=(\S+)\s+(.*)$", line)
        if match:
            found[match[1]] = (match[2], match[3])
    assert {"isolation", "ttl", "config"} <= set(found), "the options were not found in --help"
    return found


def manual_options():
    """name -> the item's text, from the section OPTIONS of the manual."""
    section = re.search(r"^\.Sh OPTIONS$(.*?)^\.Sh ", MANUAL.read_text(), re.M | re.S)[1]
    items = re.split(r"^\.It Cm ", section, flags=re.M)[1:]
    return {re.match(r"[a-z_]+", item)[0]: item for item in items}


def test_the_manual_describes_exactly_the_options_that_help_lists(options):
    assert sorted(manual_options()) == sorted(options)


def test_the_completion_offers_exactly_the_options_that_help_lists(options):
    words = re.search(r'^\s*local options="([^"]*)"', COMPLETION.read_text(), re.M | re.S)[1].split()
    own = {word.rstrip("=") for word in words}
    kernel = {"allow_other", "ro", "noexec", "noatime", "sync", "dirsync", "nosymfollow", "fsname", "allow_root", "nodiratime"}
    assert sorted(own - kernel) == sorted(set(options) - kernel)


def test_the_manual_and_the_completion_know_every_switch(help_text):
    switches = set(re.findall(r"^  .*?(--[a-z-]+)", help_text, re.M))
    assert {"--check", "--version"} <= switches
    manual = MANUAL.read_text()
    completion = re.search(r'-W "(-f [^"]*)"', COMPLETION.read_text())[1].split()
    for switch in switches:
        assert f"Fl Fl {switch[2:]}" in manual, switch
        assert switch in completion, switch


def test_the_manual_gives_the_words_that_an_option_takes(options):
    manual = manual_options()
    for name, (values, _) in options.items():
        if not values or "|" not in values:
            continue
        title = manual[name].splitlines()[0].split(" Ns = Ns Cm ", 1)[1]
        in_manual = re.sub(r" Ar (\w+)", lambda m: m[1].upper(), title).replace(" ", "")
        assert in_manual == values, name


def test_the_manual_gives_the_defaults_that_help_gives(options):
    manual = manual_options()
    for name, (values, text) in options.items():
        default = re.search(r" \(([^()]+)\)(?: \[live\])?$", text)
        if not default or default[1] == (values or "").split("|")[0]:
            continue
        words = re.sub(r"^\.\w+ |\n", " ", manual[name], flags=re.M)
        assert re.search(rf"Default:? {re.escape(default[1])}\b", words), (name, default[1])


def test_the_manual_marks_the_options_that_a_reload_changes(options):
    live = {name for name, (_, text) in options.items() if text.endswith("[live]")}
    marked = {name for name, item in manual_options().items() if ".Pq live" in item}
    assert marked == live


def test_the_manual_pages_are_well_formed():
    for page in sorted((BASE / "docs/man").glob("*.[18]")):
        try:
            done = subprocess.run(
                ["mandoc", "-Tlint", "-Wwarning", page], capture_output=True, text=True, timeout=60
            )
        except FileNotFoundError:
            pytest.skip("mandoc is not on this machine")
        assert done.returncode == 0, done.stdout + done.stderr


def test_links_in_the_documents_lead_somewhere():
    documents = [BASE / "README.md", *sorted((BASE / "docs").rglob("*.md"))]
    for document in documents:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
