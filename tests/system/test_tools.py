# SPDX-License-Identifier: Apache-2.0
"""Real tools on real input: what they do in a session is what they do on the disk. Many of them
search the parent directories, which are sessions, agents and users here."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

import pytest

from harness import CHECKOUT, SLOWNESS, read, run, sh, tree, wait_for, write

pytestmark = pytest.mark.timeout(400)


def needs(*programs):
    missing = [p for p in programs if not shutil.which(p)]
    return pytest.mark.skipif(bool(missing), reason=f'no {" and no ".join(missing)} here')


@pytest.fixture
def native(top):
    path = tempfile.mkdtemp(dir=top)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def env(workdir):
    """An environment of its own for caches and settings, so that tools start alike."""
    home = f'{workdir}/home'
    os.mkdir(home)
    return os.environ | {
        'npm_config_cache': f'{home}/npm', 'npm_config_offline': 'true', 'npm_config_audit': 'false',
        'npm_config_fund': 'false', 'npm_config_update_notifier': 'false', 'PIP_DISABLE_PIP_VERSION_CHECK': '1',
        'PIP_NO_CACHE_DIR': '1', 'GIT_CONFIG_GLOBAL': f'{home}/gitconfig', 'GIT_CONFIG_NOSYSTEM': '1',
        'GIT_AUTHOR_NAME': 'A', 'GIT_AUTHOR_EMAIL': 'a@example.com', 'GIT_COMMITTER_NAME': 'A',
        'GIT_COMMITTER_EMAIL': 'a@example.com', 'GIT_AUTHOR_DATE': '2001-02-03T04:05:06Z', 'GIT_COMMITTER_DATE': '2001-02-03T04:05:06Z', 'CARGO_NET_OFFLINE': 'true', 'CARGO_INCREMENTAL': '0', 'LC_ALL': 'C'}


def known_sessions(daemon):
    found = []
    for user in os.listdir(daemon.mnt):
        for agent in os.listdir(f'{daemon.mnt}/{user}'):
            found += [f'{user}/{agent}/{s}' for s in os.listdir(f'{daemon.mnt}/{user}/{agent}')]
    return found


def same_on_both(s, native, line, env, ignore=''):
    """Runs a shell line in a session and on the disk: same exit code, same words, and exactly one
    session known afterwards."""
    results = []
    for where in [s.path, native]:
        done = subprocess.run(['bash', '-c', line], cwd=where, env=env, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200 * SLOWNESS, check=False)
        text = done.stdout.replace(where, 'HERE')
        if ignore:
            text = re.sub(ignore, '…', text)
        results.append((done.returncode, text))
    assert results[0] == results[1]
    assert known_sessions(s.daemon) == [s.names]
    return results[0]


# ── tools that search upwards ───────────────────────────────────────────────────────────────

@needs('node')
def test_node_with_a_missing_module_fails_as_on_the_disk(s, native, env):
    code, text = same_on_both(s, native, 'echo "require(\'nothing-like-it\')" > a.js; node a.js', env)
    assert code == 1 and "Cannot find module 'nothing-like-it'" in text


@needs('node')
def test_node_finds_a_module_of_the_project_and_its_package_type(s, native, env):
    code, text = same_on_both(s, native, '''
        mkdir -p node_modules/m src && echo 'module.exports = 42' > node_modules/m/index.js
        echo 'import m from "m"; console.log(m, import.meta.url.length > 0)' > src/a.mjs && node src/a.mjs
        echo 'console.log(require("m"))' > src/b.js && node src/b.js''', env)
    assert (code, text) == (0, '42 true\n42\n')


@needs('npm')
def test_npm_installs_a_local_package_with_a_bin(s, native, env):
    line = '''mkdir -p dep app && cd dep &&
        echo '{"name":"dep","version":"1.0.0","bin":{"dep":"cli.js"},"main":"i.js"}' > package.json &&
        echo 'module.exports=7' > i.js && printf '#!/usr/bin/env node\\nconsole.log("cli")\\n' > cli.js && npm pack --silent &&
        cd ../app && echo '{"name":"app","version":"1.0.0"}' > package.json && npm install --silent ../dep/dep-1.0.0.tgz &&
        node -e 'console.log(require("dep"))' && node_modules/.bin/dep && ls -A node_modules'''
    code, text = same_on_both(s, native, line, env)
    assert code == 0 and '7\ncli\n' in text


@needs('npm')
def test_npm_without_a_package_finds_none_above(s, native, env):
    code, text = same_on_both(s, native, 'npm prefix; npm ls --json; npm pkg get name',
                              env, ignore=r'(?m)^.*(?:complete log|_logs|debug-0).*$|"name": "[^"]*",?\s*')
    assert 'HERE' in text or code is not None


@needs('cargo')
def test_cargo_builds_and_finds_no_workspace_above(s, native, env):
    line = '''mkdir -p p/src && cd p && printf '[package]\\nname="p"\\nversion="0.1.0"\\nedition="2021"\\n' > Cargo.toml &&
        echo 'fn main() { println!("built"); }' > src/main.rs && cargo build --offline -q && target/debug/p &&
        cargo build --offline -q && touch src/main.rs && cargo run --offline -q && cargo locate-project --workspace'''
    code, text = same_on_both(s, native, line, env)
    assert code == 0 and text.startswith('built\nbuilt\n')


@needs('tsc')
def test_tsc_compiles_and_finds_no_configuration_above(s, native, env):
    line = '''mkdir -p p/src && cd p && tsc --showConfig; echo 'const a: number = 1; export default a;' > src/a.ts &&
        tsc --outDir out src/a.ts && cat out/a.js && echo '{"compilerOptions":{"outDir":"o"}}' > tsconfig.json && tsc && ls o'''
    code, _ = same_on_both(s, native, line, env)
    assert code == 0


def wheel(path):
    """A package that needs no tools to be installed."""
    with zipfile.ZipFile(path, 'w') as z:
        z.writestr('smallpkg/__init__.py', 'value = 9\n')
        z.writestr('smallpkg-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\nName: smallpkg\nVersion: 1.0\n')
        z.writestr('smallpkg-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
        z.writestr('smallpkg-1.0.dist-info/entry_points.txt', '[console_scripts]\nsmall = smallpkg:__name__.title\n')
        z.writestr('smallpkg-1.0.dist-info/RECORD', '')


def test_pip_installs_into_a_venv(s, native, env, workdir):
    wheel(f'{workdir}/smallpkg-1.0-py3-none-any.whl')
    line = f'''/usr/bin/python3 -m venv v && v/bin/python -m pip install -q --no-index {workdir}/smallpkg-1.0-py3-none-any.whl &&
        v/bin/python -c 'import smallpkg, sys; print(smallpkg.value, sys.prefix)' && ls v/bin/small && v/bin/small'''
    code, text = same_on_both(s, native, line, env)
    assert code == 0 and text.startswith('9 HERE/v\nv/bin/small\n')


def test_git_finds_no_repository_above(s, native, env):
    code, text = same_on_both(s, native, 'mkdir -p a/b && cd a/b && git status', env,
                              ignore=r'\(or any .*\)(?:.*)(?:\nStopping at filesystem.*)?')
    assert code == 128 and 'not a git repository' in text


def test_git_works_in_a_session(s, native, env):
    line = '''git init -q . && echo 1 > a && ln -s a l && mkdir d && echo 2 > d/b && chmod +x d/b && git add -A && git commit -qm one &&
        git status --short && echo 3 >> a && git diff --stat && git stash -q && git stash pop -q && git commit -qam two &&
        git checkout -q HEAD^ && cat a && git checkout -q - && git gc -q && git fsck --strict && git log --format=%s &&
        git branch -m trunk && git clone -q . copy && git -C copy status --short && git ls-files -s'''
    code, text = same_on_both(s, native, line, env)
    assert code == 0 and 'two\none\n' in text


UPWARDS = r'''
import os, sys
found, where = [], os.getcwd()
while True:
    for name in ['.git', '.hg', '.svn', '.editorconfig', '.project', 'package.json', 'pyproject.toml', 'setup.py', 'setup.cfg',
                 'compile_commands.json', 'Cargo.toml', 'go.mod', 'pom.xml', 'build.gradle', 'Makefile', 'CMakeLists.txt',
                 'tsconfig.json', '.eslintrc', '.eslintrc.json', '.prettierrc', 'node_modules', '.vscode', 'WORKSPACE', 'BUILD',
                 'Gemfile', 'Rakefile', 'tags', 'vendor', 'target', 'build', 'HEAD', 'objects', 'refs', 'config', '.clangd',
                 'compile_flags.txt', 'meson.build', 'deno.json', 'poetry.lock', 'uv.lock', 'Pipfile', 'tox.ini', 'justfile',
                 'Dockerfile', 'docker-compose.yml', 'flake.nix', 'shell.nix', 'mix.exs', 'rebar.config', 'dune-project',
                 'stack.yaml', '.ruff.toml', 'mypy.ini', 'pytest.ini', 'conftest.py', 'rust-toolchain', '.python-version',
                 '.nvmrc', '.tool-versions', 'lerna.json', 'pnpm-workspace.yaml', 'nx.json', 'turbo.json']:
        if os.path.exists(os.path.join(where, name)):
            found.append(os.path.join(where, name))
    if where == sys.argv[1]:
        break
    where = os.path.dirname(where)
print(found)
'''


def test_an_editors_search_for_the_project_root_finds_nothing_above_the_session(s):
    os.makedirs(s / 'src/deep')
    out = run('/usr/bin/python3', '-c', UPWARDS, s.daemon.mnt, cwd=s / 'src/deep')
    assert out == '[]\n'
    assert known_sessions(s.daemon) == [s.names]


def test_pytest_and_python_find_no_project_above(s, native, env):
    line = f'''printf 'def test_x():\\n    assert True\\n' > test_a.py && {sys.executable} -m pytest -q -p no:cacheprovider test_a.py &&
        python3 -c 'import sys; sys.path.insert(0, "."); import test_a; print(test_a.__file__)' '''
    code, _ = same_on_both(s, native, line, env, ignore=r'in [0-9.]+s')
    assert code == 0


def test_make_builds_in_a_session(s, native, env):
    line = '''printf 'all: prog\\nprog: a.o b.o\\n\\t$(CC) -o $@ $^\\n%%.o: %%.c h.h\\n\\t$(CC) -c -o $@ $<\\n' > Makefile && echo 'int b(void);' > h.h &&
        printf '#include "h.h"\\nint main(void){return b();}\\n' > a.c && printf '#include "h.h"\\nint b(void){return 0;}\\n' > b.c &&
        make -j2 >/dev/null && ./prog && make && touch h.h && make -q; echo $?; make -j2 | sort && mkdir -p x/y && make -C x/y; ls'''
    code, text = same_on_both(s, native, line, env)
    assert code == 0 and 'prog' in text


@needs('rsync')
def test_rsync_sends_nothing_the_second_time(s, native, env):
    line = f'''cp -a {CHECKOUT}/tests/system src && rsync -a src/ dst/ && rsync -ain src/ dst/ && diff -r src dst && echo same'''
    code, text = same_on_both(s, native, line, env)
    assert code == 0 and text.endswith('same\n')


def test_tar_and_find_and_grep_read_a_tree_like_the_disk(s, native, env):
    line = f'''cp -r {CHECKOUT}/fs src && find src -type f | sort && grep -rc static src | sort | head -50 &&
        tar -cf t.tar src && tar -df t.tar && du -s --apparent-size src/*.h | sort'''
    code, _ = same_on_both(s, native, line, env)
    assert code == 0


# ── the main job ────────────────────────────────────────────────────────────────────────────

@pytest.fixture
def repository(workdir, env):
    """This project's own repository; from its files where the checkout has no commits."""
    path = f'{workdir}/repository'
    done = subprocess.run(['git', 'clone', '-q', '--no-hardlinks', CHECKOUT, path], env=env | {
        'GIT_CONFIG_COUNT': '1', 'GIT_CONFIG_KEY_0': 'safe.directory', 'GIT_CONFIG_VALUE_0': '*'}, capture_output=True, check=False)
    if done.returncode != 0 or not os.path.exists(f'{path}/meson.build'):
        shutil.rmtree(path, ignore_errors=True)
        os.mkdir(path)
        names = ['fs', 'backends', 'mount-helpers', 'tests', 'docs', 'meson.build', 'meson_options.txt']
        run('cp', '-a', *[f'{CHECKOUT}/{n}' for n in names], path)
        sh(f'cd {path} && git init -q . && git add -A && git commit -qm all', env=env)
    return path


def build(where, directory, env):
    sh(f'meson setup {directory} . >/dev/null && ninja -C {directory} fs/wsmfs >/dev/null', cwd=where, env=env, timeout=350)
    return run(f'{where}/{directory}/fs/wsmfs', '--version')


@needs('meson', 'ninja')
def test_a_real_repository_is_cloned_built_changed_committed_closed_and_read_back_after_a_restart(daemon, s, repository, env):
    run('git', 'clone', '-q', repository, s / 'p', env=env)
    version = build(s / 'p', 'out', env)
    assert version.startswith('wsmfs')
    write(s / 'p/meson.build', read(s / 'p/meson.build').replace("version: '0.", "version: '7."))
    assert sh('git status --short --untracked-files=no', cwd=s / 'p', env=env) == ' M meson.build\n'
    sh('ninja -C out fs/wsmfs >/dev/null', cwd=s / 'p', env=env, timeout=350)
    assert run(s / 'p/out/fs/wsmfs', '--version') != version
    sh('git commit -qam seven && git fsck', cwd=s / 'p', env=env)
    s.ctl('close')
    assert s.state() == 'absent'
    daemon.restart()
    assert sh('git log -1 --format=%s && git status --short --untracked-files=no', cwd=s / 'p', env=env) == 'seven\n'
    assert run(s / 'p/out/fs/wsmfs', '--version') != version
    assert known_sessions(daemon) == [s.names]


@needs('meson', 'ninja')
def test_two_sessions_of_one_agent_build_and_commit_in_one_repository_at_once(daemon, repository, env):
    a, b = daemon.session('alice/coder/s1'), daemon.session('alice/coder/s2')
    run('git', 'clone', '-q', repository, a / 'p', env=env)
    assert sh('git status --short', cwd=b / 'p', env=env) == ''
    builders = [daemon.child(lambda s=s, n=n: build(s / 'p', n, env)) for s, n in [(a, 'out-a'), (b, 'out-b')]]
    sh('git checkout -q -b topic && echo x > x && git add x && git commit -qm topic', cwd=b / 'p', env=env)
    assert sh('git log -1 --format=%s', cwd=a / 'p', env=env) == 'topic\n'
    assert all(c.result(380).startswith('wsmfs') for c in builders)
    wait_for(lambda: tree(a / 'p') == tree(b / 'p'), 20)
    a.ctl('close force')
    daemon.restart()
    assert sh('git log -1 --format=%s; git fsck', cwd=b / 'p', env=env).startswith('topic\n')
    assert sorted(known_sessions(daemon)) == [a.names, b.names]
