"""The files by which tffcl is run in containers fit each other, the command line and the repository."""

from __future__ import annotations

import configparser
import pathlib
import re
import shutil
import subprocess

import pytest
import yaml

from tffcl.flags import parse_run
from tffcl.papers import tables

ROOT = pathlib.Path(__file__).parents[1]
DEPLOY = ROOT / "docs" / "deploy"
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
KUBERNETES = {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def stunnel(name):
    """The sections of a configuration of stunnel; options before the first are of "all"."""
    parser = configparser.ConfigParser()
    parser.read_string("[all]\n" + (DEPLOY / name).read_text())
    return parser


def networks(service):
    return set(SERVICES[service]["networks"])


def test_the_image_is_made_of_files_that_are_there_and_not_ignored():
    copied = [
        word for line in re.findall(r"^COPY (.*)", (ROOT / "Dockerfile").read_text(), re.M) for word in line.split()
    ]
    sources = {word for word in copied if not word.startswith("/")}
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    assert sources == allowed
    assert all((ROOT / source).exists() for source in sources)


def test_nothing_in_a_container_runs_as_root_or_may_become_it():
    text = (ROOT / "Dockerfile").read_text()
    assert text.index("USER tffcl") < text.index("ENTRYPOINT")
    for service in SERVICES.values():
        assert (service["cap_drop"], service["read_only"]) == (["ALL"], True)
        assert service["security_opt"] == ["no-new-privileges:true"]
    for kind in ("StatefulSet", "Job"):
        pod = KUBERNETES[kind]["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert f"--uid {pod['securityContext']['runAsUser']}" in text
        for container in pod["containers"]:
            assert not container["securityContext"]["allowPrivilegeEscalation"]


def test_a_worker_is_reached_by_its_own_proxy_alone():
    workers = [name for name in SERVICES if name.startswith("worker")]
    assert len(workers) == 2
    for worker in workers:
        neighbours = {name for name in SERVICES if "networks" in SERVICES[name] and networks(name) & networks(worker)}
        assert neighbours == {worker, worker.replace("worker", "proxy")}
        (network,) = networks(worker)
        assert COMPOSE["networks"][network] == {"internal": True}
        assert "ports" not in SERVICES[worker]


def test_the_proxies_lead_from_the_program_to_the_workers():
    experiment = parse_run(SERVICES["coordinator"]["command"][1:])
    doors = [section for section in stunnel("coordinator.conf") if section.startswith("worker")]
    away = stunnel("coordinator.conf")
    assert experiment.workers.split(",") == [away[door]["accept"] for door in doors]
    assert SERVICES["coordinator"]["network_mode"] == "service:proxy"
    inside = stunnel("worker.conf")["tff"]
    port = inside["accept"].rpartition(":")[2]
    for door in doors:
        proxy = SERVICES[door.replace("worker", "proxy")]
        assert away[door]["connect"] == f"{door}:{port}"
        assert proxy["networks"]["between"]["aliases"] == [away[door]["checkHost"]] == [door]
        (alias,) = SERVICES[door]["networks"][f"inside-{door[-1]}"]["aliases"]
        assert inside["connect"] == f"{alias}:{SERVICES[door]['command'][-1]}"


def test_each_side_asks_the_other_for_a_certificate_as_the_docs_do():
    documented = (ROOT / "docs" / "runtime.md").read_text()
    for name, section in (("worker.conf", "tff"), ("coordinator.conf", "all")):
        for option in ("verifyChain", "sslVersionMin", "CAfile"):
            parser = stunnel(name)
            value = parser.get(section, option, fallback=None) or parser.get("all", option)
            assert f"{option} = {value}" in documented
            assert f"{option} = {value}" in (DEPLOY / name).read_text()


def test_files_and_secrets_that_services_name_are_there():
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (ROOT / source).is_file()
        for secret in service.get("secrets", ()):
            assert (secret if isinstance(secret, str) else secret["source"]) in COMPOSE["secrets"]


def test_the_job_finds_the_workers_of_the_set():
    workers, job = KUBERNETES["StatefulSet"], KUBERNETES["Job"]["spec"]["template"]
    experiment = parse_run(job["spec"]["containers"][0]["args"][1:])
    name, service = workers["metadata"]["name"], workers["spec"]["serviceName"]
    port = workers["spec"]["template"]["spec"]["containers"][0]["args"][-1]
    expected = [f"{name}-{number}.{service}:{port}" for number in range(workers["spec"]["replicas"])]
    assert experiment.workers.split(",") == expected
    assert KUBERNETES["Service"]["metadata"]["name"] == service
    policy = KUBERNETES["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == workers["spec"]["template"]["metadata"]["labels"]
    assert policy["ingress"][0]["from"] == [{"podSelector": {"matchLabels": job["metadata"]["labels"]}}]
    assert "egress" not in policy
    assert "Egress" in policy["policyTypes"]


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl here")
def test_certificates_are_of_one_authority_and_name_their_owner(tmp_path):
    folder = tmp_path / "secrets"
    subprocess.run([DEPLOY / "certificates.sh", folder, "worker-a"], check=True, capture_output=True)
    assert folder.stat().st_mode & 0o077 == 0
    for name in ("coordinator", "worker-a"):
        verify = ["openssl", "verify", "-CAfile", "ca.pem", "-verify_hostname", name, f"{name}.pem"]
        assert subprocess.run(verify, cwd=folder, capture_output=True).returncode == 0
    wrong = ["openssl", "verify", "-CAfile", "ca.pem", "-verify_hostname", "coordinator", "worker-a.pem"]
    assert subprocess.run(wrong, cwd=folder, capture_output=True).returncode != 0


@pytest.mark.parametrize("script", ["benchmarks/gpu.sh", "docs/deploy/certificates.sh", ".ci/run"])
def test_scripts_of_the_shell_are_well_formed_and_may_be_run(script):
    path = ROOT / script
    assert path.stat().st_mode & 0o111
    shell = path.read_text().partition("\n")[0].split("/")[-1].split()[-1]
    assert subprocess.run([shell, "-n", path], capture_output=True).stderr == b""


def test_the_page_has_a_place_for_the_gpu_s_table():
    tables.write_table(f"{ROOT / 'docs' / 'results.md'}#gpu")
