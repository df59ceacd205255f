# SPDX-License-Identifier: Apache-2.0
"""Where things are for the docker backend: what the engine sees of the base directory."""

import os
import shutil
import time

import pytest

from engine import running_engine
from harness import errno_of, mount_fails, read, wait_for, write
from jobs import output

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

# An engine in a mount namespace of its own. `empty` is another directory there, `copy` one with what
# `copied` holds; what is `real` has the name `other` too; of `partly` one agent's files are others.
APART = '''
    cd {top} && mkdir -p empty copy copied real other partly/alice/hidden && chmod 700 empty copy real partly &&
    mount --make-rprivate / && mount -t tmpfs none empty && mount --bind copied copy && mount --bind real other &&
    mount -t tmpfs none partly/alice/hidden && exec "$@"'''


@pytest.fixture(scope='module', name='engine')
def _engine():
    with running_engine() as engine:
        yield engine


@pytest.fixture(scope='module', name='apart')
def _apart():
    with running_engine(before=['unshare', '-m', 'sh', '-c', APART, 'sh']) as engine:
        yield engine


@pytest.fixture(name='make')
def _make(mount):
    """make(engine, option=value, …): a mount whose workspaces are containers of that engine."""
    used = []

    def make(engine, image='base:1', config='', backend='', start=True, **opts):
        d = mount.prepare()
        d.source = f'docker:{image}'
        d.opts.update({'basedir': d.basedir, **opts})
        d.set_config(f'{config}\n[backend docker]\nhost = {engine.host}\n{backend}\n')
        used.append(engine)
        return d.start() if start else d
    yield make
    for engine in used:
        for container in engine.containers():
            engine('rm', '-f', container, check=False)


# ── what the engine sees ────────────────────────────────────────────────────────────────────

def refused(engine, s, *words):
    """No container comes, at once, and the sentence says it all; files are not touched by it."""
    s.daemon.expect('engine sees another file system|engine does not have the base directory')
    write(s / 'f', 'here')
    begin = time.monotonic()
    assert errno_of(s.ctl, 'provision') == 'EIO'
    assert time.monotonic() - begin < 10
    assert 'basedir_on_engine' in s.error()
    for word in words:
        assert word in s.error()
    assert engine.containers() == []
    assert read(s / 'f') == 'here'


def test_an_engine_that_lacks_the_base_directory_is_told_from_one_that_has_it(make, apart):
    s = make(apart, basedir=f'{apart.top}/empty/base').session()
    refused(apart, s, f'{apart.top}/empty/base', 'another file system')


def test_an_engine_with_another_directory_of_that_name_makes_no_empty_workspace(make, apart):
    """All paths to be bound are there: only what is in them tells the difference."""
    s = make(apart, basedir=f'{apart.top}/copy').session()
    shutil.copytree(f'{apart.top}/copy/.wsmfs/guest', f'{apart.top}/copied/.wsmfs/guest')
    for name in [f'.wsmfs/run/{s.id()}', 'alice/coder']:
        os.makedirs(f'{apart.top}/copied/{name}')
    refused(apart, s, 'another directory')


def test_one_workspace_that_the_engine_sees_elsewhere_is_refused_alone(make, apart):
    d = make(apart, basedir=f'{apart.top}/partly')
    refused(apart, d.session('alice/hidden/s1'), 'another directory')
    assert output(d.session('alice/coder/s1'), 'echo fine') == 'fine\n'


def test_basedir_on_engine_says_where_the_engine_has_the_base_directory(make, apart):
    s = make(apart, basedir=f'{apart.top}/real', basedir_on_engine=f'{apart.top}/other/').session()
    write(s / 'f', 'from outside\n')
    assert output(s, 'cat f; echo inside > g') == 'from outside\n'
    assert read(s / 'g') == 'inside\n'
    binds = {m['Destination']: m['Source'] for m in apart.inspect(apart.containers()[0])['Mounts']}
    assert binds['/workspace'] == f'{apart.top}/other/alice/coder'


@pytest.mark.parametrize('where', ['empty', 'nowhere', 'partly'])
def test_a_wrong_basedir_on_engine_is_named(make, apart, where):
    s = make(apart, basedir=f'{apart.top}/real', basedir_on_engine=f'{apart.top}/{where}').session('bob/b/s1')
    refused(apart, s, f'{apart.top}/real', f'{apart.top}/{where}')


def test_a_workspace_that_is_being_changed_is_no_other_directory(make, engine):
    """The time of its directory is what is compared."""
    d = make(engine)
    s = d.session()

    def churn():
        while True:
            write(s / 'f', 'x')
            os.unlink(s / 'f')
    d.child(churn)
    for _ in range(5):
        s.ctl('provision')
        assert len(engine.containers()) == 1
        s.ctl('close force')


def test_another_backend_refuses_basedir_on_engine_by_name(mount):
    d = mount.prepare(basedir_on_engine='/x')
    assert 'basedir_on_engine' in mount_fails(d)[1]


@pytest.mark.parametrize('value', ['relative', '/', '/a/../b', '/a/..'])
def test_a_basedir_on_engine_that_makes_no_sense_is_refused(make, engine, value):
    assert 'basedir_on_engine' in mount_fails(make(engine, basedir_on_engine=value, start=False))[1]
