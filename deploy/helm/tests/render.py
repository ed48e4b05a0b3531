#!/usr/bin/env python3
"""Tests of the chart's rendering, by `helm template`: make test-helm runs it.

Needs PyYAML, and the variable HELM with the program. With WALRELAY, `walrelay check --offline` reads the configuration
of each rendered relay, with the arguments and the environment of its container.
"""

import json
import os
import pathlib
import subprocess
import tarfile
import tempfile
import unittest

import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CHART = HERE.parent / "walrelay"
RELEASES = HERE / "releases"
PAGE = ROOT / "docs/start/kubernetes.md"
KUBERNETES = os.environ.get("KUBERNETES", "1.37.0")


def template(*arguments):
    """Runs `helm template` for the release `shop` in the namespace `shop`."""
    command = [os.environ["HELM"], "template", "shop", CHART, "--namespace", "shop", "--kube-version", KUBERNETES]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


def text(*arguments):
    """Returns the rendered manifests as text."""
    output = template(*arguments)
    if output.returncode != 0:
        raise AssertionError(output.stderr)
    return output.stdout


def objects(*arguments):
    """Returns the rendered objects by kind and name."""
    documents = filter(None, yaml.safe_load_all(text(*arguments)))
    found = {}
    for document in documents:
        key = document["kind"], document["metadata"]["name"]
        assert key not in found, f"two objects {key}"
        found[key] = document
    return found


def release(name):
    return objects("--values", RELEASES / f"{name}.yaml")


def blocks():
    """Returns the values that docs/start/kubernetes.md shows, by their names.

    Each block has a mark, with a name or the reason why nothing runs it.
    """
    found = {}
    parts = PAGE.read_text().split("\n```")
    for before, block in zip(parts[::2], parts[1::2]):
        mark = before.rsplit("\n", 1)[-1]
        language, _, body = block.partition("\n")
        if mark.startswith("<!-- run: "):
            assert language == "yaml", f"{mark}: {language}"
            name = mark.removeprefix("<!-- run: ").removesuffix(" -->")
            assert name not in found, name
            found[name] = body + "\n"
        else:
            assert mark.startswith("<!-- not run: "), f"a block without a mark, after: {mark}"
    return found


def releases():
    """Iterates over the names and the objects of all releases, those of the page included."""
    for file in sorted(RELEASES.glob("*.yaml")):
        yield file.name, objects("--values", file)
    for name, values in blocks().items():
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(values)
            file.flush()
            yield f"{PAGE.name}, {name}", objects("--values", file.name)


def pod(deployment):
    return deployment["spec"]["template"]["spec"]


def container(spec):
    [only] = spec["containers"]
    return only


def leaves(values, path=""):
    """Iterates over the paths of the values that hold no map, or an empty one."""
    for key, value in values.items():
        here = f"{path}.{key}" if path else key
        if isinstance(value, dict) and value:
            yield from leaves(value, here)
        else:
            yield here


def setting(path, value):
    """Returns the arguments of Helm that set a value."""
    return ["--set-json", f"{path}={json.dumps(value)}"]


class Values(unittest.TestCase):
    maxDiff = None

    def test_each_value_has_an_effect(self):
        defaults = yaml.safe_load((CHART / "values.yaml").read_text())
        changes = yaml.safe_load((HERE / "changes.yaml").read_text())
        self.assertEqual(sorted(leaves(defaults)), sorted(changes))
        rendered = {}
        for path, change in changes.items():
            with self.subTest(path):
                before = ["--values", str(RELEASES / "kafka.yaml")]
                for other, value in change.get("with", {}).items():
                    before += setting(other, value)
                if tuple(before) not in rendered:
                    rendered[tuple(before)] = text(*before)
                default, changed = rendered[tuple(before)], text(*before, *setting(path, change["to"]))
                if "lacks" in change:
                    default, changed, expected = changed, default, change["lacks"]
                else:
                    expected = change["has"]
                self.assertNotIn(expected, default)
                self.assertIn(expected, changed)

    def test_each_value_has_a_comment(self):
        lines = (CHART / "values.yaml").read_text().splitlines()
        top = [number for number, line in enumerate(lines) if line and line[0].isalpha()]
        self.assertEqual(len(top), len(yaml.safe_load("\n".join(lines))))
        # Neighbours without an empty line between them may share a comment.
        for number in top:
            above = number - 1
            while lines[above] and not lines[above].startswith("#"):
                above -= 1
            self.assertTrue(lines[above].startswith("#"), lines[number])

    def test_wrong_values_are_refused(self):
        kafka = ["--values", str(RELEASES / "kafka.yaml")]
        for arguments, reason in [
            ([], "set config to the text of a walrelay.toml"),
            ([*setting("pipelines.orders.replicas", 1)], "set pipelines.orders.config to the text"),
            ([*kafka, *setting("replica", 3)], "replica"),
            ([*kafka, *setting("http.prot", 3)], "prot"),
            ([*kafka, *setting("pipelines.orders.image", {})], "image"),
            ([*kafka, *setting("secretEnv.relay", {"name": "a", "key": "b"})], "relay"),
            ([*kafka, *setting("state", {"enabled": True, "accessMode": "ReadWriteOnce"})], "fits one pod"),
        ]:
            with self.subTest(reason):
                output = template(*arguments)
                self.assertNotEqual(output.returncode, 0, output.stdout)
                self.assertIn(reason, output.stderr)


class Relay(unittest.TestCase):
    """A release with one relay."""

    def setUp(self):
        self.objects = release("kafka")
        self.deployment = self.objects["Deployment", "shop-walrelay"]

    def test_has_no_more_objects_than_it_needs(self):
        expected = ["ConfigMap", "Deployment", "Pod", "PodDisruptionBudget", "Service", "ServiceAccount"]
        self.assertEqual(sorted(kind for kind, _ in self.objects), expected)

    def test_a_standby_is_ready_before_a_relay_is_stopped(self):
        spec = self.deployment["spec"]
        self.assertEqual(spec["replicas"], 2)
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
        self.assertEqual(spec["strategy"], strategy)
        probes = container(pod(self.deployment))
        self.assertEqual(probes["readinessProbe"]["httpGet"]["path"], "/readyz")
        self.assertEqual(probes["livenessProbe"]["httpGet"]["path"], "/healthz")
        # A drain may take delivery.drain_timeout, 30 s, and ten seconds more.
        self.assertGreater(pod(self.deployment)["terminationGracePeriodSeconds"], 40)
        budget = self.objects["PodDisruptionBudget", "shop-walrelay"]["spec"]
        self.assertEqual(budget["maxUnavailable"], 1)

    def test_has_no_rights(self):
        spec = pod(self.deployment)
        check = self.objects["Pod", "shop-walrelay-check"]["spec"]
        for one in [spec, check]:
            self.assertFalse(one["automountServiceAccountToken"])
            self.assertTrue(one["securityContext"]["runAsNonRoot"])
            self.assertEqual(one["securityContext"]["runAsUser"], 10001)
            self.assertEqual(one["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
            context = {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            self.assertEqual(container(one)["securityContext"], context)

    def test_the_configuration_is_the_text_of_the_values(self):
        values = yaml.safe_load((RELEASES / "kafka.yaml").read_text())
        config = self.objects["ConfigMap", "shop-walrelay"]["data"]["walrelay.toml"]
        self.assertEqual(config, values["config"])
        self.assertIn("${RELAY_PASSWORD}", config)
        self.assertIn("{{as they are}}", config)

    def test_a_changed_configuration_restarts_the_pods(self):
        def checksum(*arguments):
            found = objects("--values", RELEASES / "kafka.yaml", *arguments)["Deployment", "shop-walrelay"]
            return found["spec"]["template"]["metadata"]["annotations"]["checksum/config"]

        self.assertEqual(checksum(), checksum(*setting("replicas", 3)))
        self.assertNotEqual(checksum(), checksum(*setting("config", "[source]\n")))

    def test_one_replica_has_no_budget_which_would_block_a_drain(self):
        found = objects("--values", RELEASES / "kafka.yaml", *setting("replicas", 1))
        self.assertNotIn(("PodDisruptionBudget", "shop-walrelay"), found)
        strategy = found["Deployment", "shop-walrelay"]["spec"]["strategy"]
        self.assertEqual(strategy["type"], "RollingUpdate")

    def test_selectors_find_the_pods_of_the_relay_and_no_other(self):
        labels = self.deployment["spec"]["template"]["metadata"]["labels"]
        others = self.objects["Pod", "shop-walrelay-check"]["metadata"]["labels"]
        for selector in [
            self.deployment["spec"]["selector"]["matchLabels"],
            self.objects["Service", "shop-walrelay"]["spec"]["selector"],
            self.objects["PodDisruptionBudget", "shop-walrelay"]["spec"]["selector"]["matchLabels"],
            pod(self.deployment)["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
        ]:
            self.assertLessEqual(selector.items(), labels.items())
            self.assertFalse(selector.items() <= others.items())

    def test_the_doctor_has_what_the_relay_has(self):
        run = container(pod(self.deployment))
        spec = self.objects["Pod", "shop-walrelay-check"]["spec"]
        check = container(spec)
        self.assertEqual(check["args"], ["check", *run["args"][1:]])
        for key in ["image", "env", "volumeMounts", "securityContext"]:
            self.assertEqual(check[key], run[key])
        self.assertEqual(spec["volumes"], pod(self.deployment)["volumes"])


class Pipelines(unittest.TestCase):
    """A release with several relays."""

    def setUp(self):
        self.objects = release("pipelines")
        self.orders = self.objects["Deployment", "shop-walrelay-orders"]
        self.invoices = self.objects["Deployment", "shop-walrelay-invoices"]

    def test_each_entry_is_a_deployment(self):
        names = sorted(name for kind, name in self.objects if kind == "Deployment")
        self.assertEqual(names, ["shop-walrelay-invoices", "shop-walrelay-orders"])
        for kind in ["ConfigMap", "Service", "Deployment"]:
            self.assertEqual(sum(one == kind for one, _ in self.objects), 2)
        labels = self.orders["spec"]["template"]["metadata"]["labels"]
        selector = self.invoices["spec"]["selector"]["matchLabels"]
        self.assertFalse(selector.items() <= labels.items())

    def test_an_entry_adds_to_the_common_values(self):
        def variables(deployment):
            return [one["name"] for one in container(pod(deployment))["env"]]

        self.assertEqual(variables(self.orders), ["REDIS_PASSWORD", "RELAY_PASSWORD"])
        self.assertEqual(variables(self.invoices), ["RELAY_PASSWORD"])
        resources = container(pod(self.orders))["resources"]
        self.assertEqual(resources["limits"]["memory"], "512Mi")
        self.assertEqual(resources["requests"]["memory"], "64Mi")

    def test_a_volume_for_one_pod_stops_it_first(self):
        self.assertEqual(self.invoices["spec"]["strategy"], {"type": "Recreate"})
        claim = self.objects["PersistentVolumeClaim", "shop-walrelay-invoices"]
        self.assertEqual(claim["spec"]["accessModes"], ["ReadWriteOnce"])
        self.assertNotIn(("PersistentVolumeClaim", "shop-walrelay-orders"), self.objects)

    def test_an_entry_may_set_zero_and_false(self):
        values = [*setting("state.enabled", True), *setting("pipelines.orders.state.enabled", False)]
        found = objects("--values", RELEASES / "pipelines.yaml", *values, *setting("pipelines.orders.replicas", 0))
        self.assertEqual(found["Deployment", "shop-walrelay-orders"]["spec"]["replicas"], 0)
        self.assertNotIn(("PersistentVolumeClaim", "shop-walrelay-orders"), found)


class LockedDown(unittest.TestCase):
    """A release with a token, TLS, secrets as files and a network policy."""

    def setUp(self):
        self.objects = release("locked-down")
        self.spec = pod(self.objects["Deployment", "shop-walrelay"])

    def test_secrets_are_files_for_the_user_of_the_relay(self):
        secrets = [one["secret"] for one in self.spec["volumes"] if "secret" in one]
        self.assertEqual(len(secrets), 5)
        for secret in secrets:
            self.assertEqual(secret["defaultMode"], 0o440)
        self.assertIn([{"key": "ca.crt", "path": "ca.crt"}], [secret.get("items") for secret in secrets])
        self.assertEqual(self.spec["securityContext"]["fsGroup"], 10001)
        mounts = [one for one in container(self.spec)["volumeMounts"] if one["mountPath"].startswith("/run/secrets/")]
        self.assertEqual(len(mounts), 5)
        self.assertTrue(all(one["readOnly"] for one in mounts))

    def test_the_endpoint_has_a_token_and_tls(self):
        arguments = container(self.spec)["args"]
        self.assertIn("--set=http.token_file=/run/secrets/walrelay-http/token", arguments)
        self.assertNotIn("--set=http.allow_anonymous=true", arguments)
        for probe in ["livenessProbe", "readinessProbe"]:
            self.assertEqual(container(self.spec)[probe]["httpGet"]["scheme"], "HTTPS")

    def test_the_policy_lets_in_and_out_what_it_names_and_dns(self):
        policy = self.objects["NetworkPolicy", "shop-walrelay"]["spec"]
        self.assertEqual(policy["policyTypes"], ["Ingress", "Egress"])
        [ingress] = policy["ingress"]
        self.assertEqual([port["port"] for port in ingress["ports"]], [9187])
        self.assertEqual(len(ingress["from"]), 1)
        ports = [port["port"] for rule in policy["egress"] for port in rule["ports"]]
        self.assertEqual(ports, [53, 53, 5432, 4222])


class Monitoring(unittest.TestCase):
    """A release with the objects of the Prometheus operator and Grafana."""

    def setUp(self):
        self.objects = release("monitoring")

    def test_alerts_and_dashboard_are_those_of_deploy(self):
        rules = self.objects["PrometheusRule", "shop-walrelay"]["spec"]
        self.assertEqual(rules, yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text()))
        dashboard = self.objects["ConfigMap", "shop-walrelay-dashboard"]
        self.assertEqual(
            json.loads(dashboard["data"]["walrelay.json"]),
            json.loads((ROOT / "deploy/grafana/walrelay.json").read_text()),
        )

    def test_the_job_is_that_of_the_alerts(self):
        monitor = self.objects["ServiceMonitor", "shop-walrelay"]
        [endpoint] = monitor["spec"]["endpoints"]
        job = {"targetLabel": "job", "replacement": "walrelay", "action": "replace"}
        self.assertEqual(endpoint["relabelings"], [job])
        self.assertIn('job="walrelay"', text("--values", RELEASES / "monitoring.yaml"))
        service = self.objects["Service", "shop-walrelay"]
        selector = monitor["spec"]["selector"]["matchLabels"]
        self.assertLessEqual(selector.items(), service["metadata"]["labels"].items())
        self.assertIn(endpoint["port"], [port["name"] for port in service["spec"]["ports"]])

    def test_the_metrics_are_read_with_token_and_tls(self):
        secrets = [*setting("http.tokenSecret", "walrelay-http"), *setting("http.tlsSecret", "walrelay-tls")]
        found = objects("--values", RELEASES / "monitoring.yaml", *secrets)
        [endpoint] = found["ServiceMonitor", "shop-walrelay"]["spec"]["endpoints"]
        self.assertEqual(endpoint["scheme"], "https")
        credentials = {"name": "walrelay-http", "key": "token"}
        self.assertEqual(endpoint["authorization"], {"type": "Bearer", "credentials": credentials})

    def test_the_package_has_the_files_that_the_chart_links_to(self):
        with tempfile.TemporaryDirectory() as folder:
            command = [os.environ["HELM"], "package", CHART, "--destination", folder]
            subprocess.run(command, capture_output=True, check=True)
            [package] = pathlib.Path(folder).glob("*.tgz")
            with tarfile.open(package) as archive:
                sources = {"alerts.yml": "prometheus/alerts.yml", "dashboard.json": "grafana/walrelay.json"}
                for name, source in sources.items():
                    packed = archive.extractfile(f"walrelay/files/{name}").read()
                    self.assertEqual(packed, (ROOT / "deploy" / source).read_bytes())


class Page(unittest.TestCase):
    def test_the_chart_accepts_the_values_of_the_page(self):
        rendered = [name for name, found in releases() if any(kind == "Deployment" for kind, _ in found)]
        self.assertEqual(len(rendered), len(list(RELEASES.glob("*.yaml"))) + len(blocks()))
        self.assertGreater(len(blocks()), 5)

    def test_the_page_names_the_versions_of_kubernetes_that_are_tested(self):
        script = (ROOT / "scripts/test-helm.sh").read_text()
        [line] = [line for line in script.splitlines() if line.startswith("kubernetes='")]
        first, second, third = [version.removesuffix(".0") for version in line.split("'")[1].split()]
        self.assertIn(f"the schemas of Kubernetes {first}, {second} and {third}", " ".join(PAGE.read_text().split()))


@unittest.skipUnless("WALRELAY" in os.environ, "there is no walrelay to read the configurations")
class Configuration(unittest.TestCase):
    def test_walrelay_accepts_each_configuration_with_the_arguments_of_its_container(self):
        for release_name, found in releases():
            for (kind, name), deployment in found.items():
                if kind == "Deployment":
                    with self.subTest(f"{release_name}: {name}"):
                        config = found["ConfigMap", name]["data"]["walrelay.toml"]
                        self.check(config, container(pod(deployment)))

    def check(self, config, relay):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)

            def moved(words):
                for mounted in ["/etc/walrelay", "/run/secrets", "/var/lib/walrelay"]:
                    words = words.replace(mounted, str(folder))
                return words

            # One file for each key of a secret that is named.
            for word in " ".join([config, *relay["args"]]).replace('"', " ").replace("=", " ").split():
                if word.startswith("/run/secrets/"):
                    file = pathlib.Path(moved(word))
                    file.parent.mkdir(exist_ok=True)
                    file.write_text("hunter2")
            (folder / "walrelay.toml").write_text(moved(config))
            environment = {one["name"]: "hunter2" for one in relay.get("env", [])}
            arguments = [moved(argument) for argument in relay["args"][1:]]
            command = [os.environ["WALRELAY"], "check", "--offline", *arguments]
            output = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            self.assertEqual(output.returncode, 0, output.stdout + output.stderr)
            self.assertIn(" 0 fail", output.stdout)


if __name__ == "__main__":
    unittest.main()
