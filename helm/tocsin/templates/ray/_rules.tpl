{{/*
What no schema can say: values that do not fit each other. Each rule is one line: where, what was found,
what was expected, what to do. They stop `helm template` too, so that a pipeline sees them.
*/}}
{{- define "tocsin.rules" -}}
{{- include "tocsin.rules.cluster" . -}}
{{- include "tocsin.rules.node" (dict "where" "head" "node" .Values.head) -}}
{{- range $name, $own := .Values.workerGroups -}}
{{- $group := mergeOverwrite (deepCopy $.Values.worker) (deepCopy $own) -}}
{{- include "tocsin.rules.group" (dict "root" $ "where" (printf "workerGroups.%s" $name) "group" $group) -}}
{{- end -}}
{{- range $where, $pod := dict "chaos.driver" .Values.chaos.driver "test" .Values.test "monitoring.relay" .Values.monitoring.relay -}}
{{- $enabled := ternary $.Values.chaos.enabled $pod.enabled (eq $where "chaos.driver") -}}
{{- if $enabled -}}
{{- include "tocsin.rules.resources" (dict "where" $where "resources" $pod.resources) -}}
{{- $inner := hasKey $pod "placement" -}}
{{- include "tocsin.rules.placement" (dict "where" (ternary (printf "%s.placement" $where) $where $inner) "place" (ternary $pod.placement $pod $inner)) -}}
{{- end -}}
{{- end -}}
{{- include "tocsin.rules.fit" . -}}
{{- include "tocsin.rules.checker" . -}}
{{- include "tocsin.rules.extraEnv" . -}}
{{- include "tocsin.rules.live" . -}}
{{- end -}}

{{- define "tocsin.rules.cluster" -}}
{{- $ray := .Values.ray -}}
{{- if semverCompare "<2.53.0" $ray.version -}}
{{- fail (printf "ray.version: %s, expected 2.53.0 or later, whose nodes answer the probes; use an image with a newer Ray" $ray.version) -}}
{{- end -}}
{{- if not .Values.workerGroups -}}
{{- fail "workerGroups: no group is left, expected one at least; do not set the last one to null" -}}
{{- end -}}
{{- with $ray.gcsFaultTolerance -}}
{{- if and .enabled (not .redisAddress) -}}
{{- fail "ray.gcsFaultTolerance.redisAddress: empty, expected host:port of a Redis; set it, or ray.gcsFaultTolerance.enabled to false" -}}
{{- end -}}
{{- if and (not .enabled) (or .redisAddress .passwordSecret.name .usernameSecret.name) -}}
{{- fail "ray.gcsFaultTolerance: a Redis is named and enabled is false, expected both or none; set enabled to true or take the rest away" -}}
{{- end -}}
{{- if and .usernameSecret.name (not .passwordSecret.name) -}}
{{- fail "ray.gcsFaultTolerance.passwordSecret.name: empty beside a usernameSecret, expected the Secret with the password; set it" -}}
{{- end -}}
{{- end -}}
{{- if $ray.autoscaling.enabled -}}
{{- include "tocsin.rules.resources" (dict "where" "ray.autoscaling" "resources" $ray.autoscaling.resources) -}}
{{- if eq .Values.topology "cluster" -}}
{{- fail "ray.autoscaling.enabled: true with topology cluster, where Helm and the autoscaler would both own the replicas and an upgrade fails with a conflict; set topology to service" -}}
{{- end -}}
{{- end -}}
{{- if eq $ray.upgrade.strategy "NewClusterWithIncrementalUpgrade" -}}
{{- with $ray.upgrade.incremental -}}
{{- if eq $.Values.topology "cluster" -}}
{{- fail "ray.upgrade.strategy: NewClusterWithIncrementalUpgrade with topology cluster, expected NewCluster or None; a RayCluster has no traffic to move" -}}
{{- end -}}
{{- if not $ray.autoscaling.enabled -}}
{{- fail "ray.upgrade.strategy: NewClusterWithIncrementalUpgrade without autoscaling, which KubeRay refuses; set ray.autoscaling.enabled to true" -}}
{{- end -}}
{{- if not .gatewayClassName -}}
{{- fail "ray.upgrade.incremental.gatewayClassName: empty, expected a GatewayClass of the cluster; set it or choose another strategy" -}}
{{- end -}}
{{- if gt (int .stepSizePercent) (int .maxSurgePercent) -}}
{{- fail (printf "ray.upgrade.incremental.stepSizePercent: %d, expected at most maxSurgePercent (%d); lower it" (int .stepSizePercent) (int .maxSurgePercent)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.telemetry -}}
{{- if and (not .enabled) .endpoint -}}
{{- fail (printf "telemetry.endpoint: %s with telemetry.enabled false, where it does nothing; set enabled to true or take it away" .endpoint) -}}
{{- end -}}
{{- end -}}
{{- with .Values.networkPolicy -}}
{{- if and .egress.cidrs (not (and .enabled .egress.restrict)) -}}
{{- fail "networkPolicy.egress.cidrs: given while networkPolicy.enabled or egress.restrict is false, where they restrict nothing; set both to true or take them away" -}}
{{- end -}}
{{- end -}}
{{- with .Values.model -}}
{{- if and (eq .source "pvc") (not .claimName) -}}
{{- fail "model.claimName: empty with model.source pvc, expected a PersistentVolumeClaim of the namespace; set it" -}}
{{- end -}}
{{- $builtIn := $.Files.Get "files/serving/models.yaml" | fromYamlArray -}}
{{- if and (eq .source "image") (not (has .name $builtIn)) -}}
{{- fail (printf "model.name: %s with model.source image, expected a model that is built in: %s; correct it, or set model.source to pvc" .name (join ", " $builtIn)) -}}
{{- end -}}
{{- if and (eq .source "image") (or .claimName .subPath) -}}
{{- fail "model.source: image, and claimName or subPath is set, which then do nothing; set source to pvc or take them away" -}}
{{- end -}}
{{- end -}}
{{- if and (gt (int .Values.serve.gatewayReplicas) 1) (eq .Values.serve.args.gateway_placement "head") -}}
{{- fail (printf "serve.gatewayReplicas: %d with gateway_placement head, expected 1: the head takes one; set serve.args.gateway_placement to workers" (int .Values.serve.gatewayReplicas)) -}}
{{- end -}}
{{- end -}}

{{/* Takes a dict: where, node (a Node section). */}}
{{- define "tocsin.rules.node" -}}
{{- include "tocsin.rules.resources" (dict "where" .where "resources" .node.resources) -}}
{{- include "tocsin.rules.placement" (dict "where" .where "place" .node) -}}
{{- $memory := int64 (include "tocsin.bytes" .node.resources.memory) -}}
{{- $shared := int64 (include "tocsin.bytes" .node.sharedMemory) -}}
{{- $store := int64 (include "tocsin.bytes" .node.objectStore) -}}
{{- if lt $store 78643200 -}}
{{- fail (printf "%s.objectStore: %s, expected at least 75Mi, below which Ray does not start; raise it" .where .node.objectStore) -}}
{{- end -}}
{{- if gt $store $shared -}}
{{- fail (printf "%s.objectStore: %s, expected at most sharedMemory (%s), in which it lies; lower it or raise sharedMemory" .where .node.objectStore .node.sharedMemory) -}}
{{- end -}}
{{- if ge $shared $memory -}}
{{- fail (printf "%s.sharedMemory: %s, expected less than resources.memory (%s), of which it is a part; lower it or raise the memory" .where .node.sharedMemory .node.resources.memory) -}}
{{- end -}}
{{- end -}}

{{/* Takes a dict: where, resources. */}}
{{- define "tocsin.rules.resources" -}}
{{- with .resources -}}
{{- if .cpuLimit -}}
{{- if gt (int64 (include "tocsin.millicores" .cpu)) (int64 (include "tocsin.millicores" .cpuLimit)) -}}
{{- fail (printf "%s.resources.cpu: %s, expected at most cpuLimit (%s); lower it or raise the limit" $.where .cpu .cpuLimit) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Takes a dict: where, place (a Placement section). */}}
{{- define "tocsin.rules.placement" -}}
{{- range $kind := list "required" "preferred" -}}
{{- range $at, $one := get $.place.nodeAffinity $kind -}}
{{- $operator := default "In" $one.operator -}}
{{- $count := len (default list $one.values) -}}
{{- $where := printf "%s.nodeAffinity.%s[%d].values" $.where $kind $at -}}
{{- if and (has $operator (list "In" "NotIn")) (eq $count 0) -}}
{{- fail (printf "%s: empty, expected what %s is compared with; add a value" $where $one.key) -}}
{{- else if and (has $operator (list "Exists" "DoesNotExist")) (gt $count 0) -}}
{{- fail (printf "%s: %d given, expected none for operator %s; take them away" $where $count $operator) -}}
{{- else if has $operator (list "Gt" "Lt") -}}
{{- if not (and (eq $count 1) (regexMatch "^[0-9]+$" (toString (first (default (list "") $one.values))))) -}}
{{- fail (printf "%s: %v, expected one whole number for operator %s; correct it" $where $one.values $operator) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $at, $one := .place.tolerations -}}
{{- if and (ne (default "Exists" $one.operator) "Equal") $one.value -}}
{{- fail (printf "%s.tolerations[%d].value: %s, expected none for operator Exists; set operator to Equal" $.where $at $one.value) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Takes a dict: root, where, group (merged). */}}
{{- define "tocsin.rules.group" -}}
{{- include "tocsin.rules.node" (dict "where" .where "node" .group) -}}
{{- with .group -}}
{{- if or (gt (int .minReplicas) (int .replicas)) (gt (int .replicas) (int .maxReplicas)) -}}
{{- fail (printf "%s.replicas: %d, expected minReplicas (%d) to maxReplicas (%d); set all three to fit" $.where (int .replicas) (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- if and (gt (int .idleTimeoutSeconds) 0) (not $.root.Values.ray.autoscaling.enabled) -}}
{{- fail (printf "%s.idleTimeoutSeconds: %d without autoscaling, which KubeRay refuses; set it to 0 or ray.autoscaling.enabled to true" $.where (int .idleTimeoutSeconds)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Every replica of the model must find its CPUs and GPUs on one pod. */}}
{{- define "tocsin.rules.fit" -}}
{{- $serve := .Values.serve -}}
{{- $auto := .Values.ray.autoscaling.enabled -}}
{{- $cpus := float64 $serve.numCpus -}}
{{- $gpus := float64 $serve.numGpus -}}
{{- if and (gt $gpus 0.0) (lt $gpus 0.0001) -}}
{{- fail (printf "serve.numGpus: %v, expected 0 or at least 0.0001, the smallest share that Ray counts; raise it" $serve.numGpus) -}}
{{- end -}}
{{- if and (eq $serve.args.device "cuda") (eq $gpus 0.0) -}}
{{- fail "serve.args.device: cuda with serve.numGpus 0, where Ray hides every GPU from a replica; set serve.numGpus, or device to auto" -}}
{{- end -}}
{{- if and (eq $serve.args.device "cpu") (gt $gpus 0.0) -}}
{{- fail (printf "serve.args.device: cpu with serve.numGpus %v, which no replica would then use; set serve.numGpus to 0, or device to auto" $serve.numGpus) -}}
{{- end -}}
{{- if and (gt $gpus 1.0) (ne $gpus (floor $gpus)) -}}
{{- fail (printf "serve.numGpus: %v, expected a share of one GPU or a whole number of them; Ray gives nothing in between" $serve.numGpus) -}}
{{- end -}}
{{- $room := 0 -}}
{{- $withGpus := 0 -}}
{{- range $name, $own := .Values.workerGroups -}}
{{- $group := mergeOverwrite (deepCopy $.Values.worker) (deepCopy $own) -}}
{{- $pods := int (ternary $group.maxReplicas $group.replicas $auto) -}}
{{- $each := int (floor (divf (float64 (include "tocsin.cores" $group.resources)) $cpus)) -}}
{{- if gt $gpus 0.0 -}}
{{- $perGpu := ternary (int (floor (divf 1.0 $gpus))) 1 (lt $gpus 1.0) -}}
{{- $byGpu := ternary (mul (int $group.gpu.count) $perGpu) (int (floor (divf (float64 $group.gpu.count) $gpus))) (lt $gpus 1.0) -}}
{{- $each = min $each $byGpu -}}
{{- end -}}
{{- $room = add $room (mul $pods $each) -}}
{{- $withGpus = add $withGpus (int $group.gpu.count) -}}
{{- end -}}
{{- if and (gt $withGpus 0) (eq $gpus 0.0) -}}
{{- fail "serve.numGpus: 0, and worker pods ask for GPUs, which no replica would then use; set serve.numGpus or the groups' gpu.count to 0" -}}
{{- end -}}
{{- if lt $room (int $serve.replicas) -}}
{{- fail (printf "serve.replicas: %d with %v CPUs and %v GPUs each, the worker groups have room for %d; raise their replicas or resources, or lower serve.replicas, serve.numCpus or serve.numGpus" (int $serve.replicas) $serve.numCpus $serve.numGpus $room) -}}
{{- end -}}
{{- end -}}

{{- define "tocsin.rules.checker" -}}
{{- with .Values.checker -}}
{{- if gt (int64 .essential_free_bytes) (int64 .degrade_free_bytes) -}}
{{- fail (printf "checker.essential_free_bytes: %d, expected at most degrade_free_bytes (%d); lower it" (int64 .essential_free_bytes) (int64 .degrade_free_bytes)) -}}
{{- end -}}
{{- end -}}
{{- with .Values.checker.journal -}}
{{- if gt (int64 .rotate_bytes) (int64 .disk_bytes_max) -}}
{{- fail (printf "checker.journal.rotate_bytes: %d, expected at most disk_bytes_max (%d), above which an open file would be the only one; lower it" (int64 .rotate_bytes) (int64 .disk_bytes_max)) -}}
{{- end -}}
{{- if gt (int64 .snapshot_bytes_max) (int64 .queue_bytes_max) -}}
{{- fail (printf "checker.journal.snapshot_bytes_max: %d, expected at most queue_bytes_max (%d), in which a snapshot waits for the disk; lower it" (int64 .snapshot_bytes_max) (int64 .queue_bytes_max)) -}}
{{- end -}}
{{- end -}}
{{- range $name, $own := .Values.workerGroups -}}
{{- $group := mergeOverwrite (deepCopy $.Values.worker) (deepCopy $own) -}}
{{- if gt (int64 $.Values.checker.journal.disk_bytes_max) (int64 (include "tocsin.bytes" $group.scratch)) -}}
{{- fail (printf "checker.journal.disk_bytes_max: %d, expected at most workerGroups.%s.scratch (%s), above which the pod is evicted; lower it or raise scratch" (int64 $.Values.checker.journal.disk_bytes_max) $name $group.scratch) -}}
{{- end -}}
{{- if eq (int $group.gpu.count) 0 -}}
{{- $left := mulf (float64 $.Values.checker.degrade_free_bytes) (float64 $.Values.checker.recover_factor) -}}
{{- if ge $left (float64 (include "tocsin.bytes" $group.resources.memory)) -}}
{{- fail (printf "checker.degrade_free_bytes: %d times recover_factor, expected less than workerGroups.%s.resources.memory (%s): attention would never leave its lighter backend; lower it or raise the memory" (int64 $.Values.checker.degrade_free_bytes) $name $group.resources.memory) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.serve.args -}}
{{- if gt (int .max_length) (mul (int .pages) (int .page_size)) -}}
{{- fail (printf "serve.args.max_length: %d, expected at most pages × page_size (%d); raise pages or lower it" (int .max_length) (mul (int .pages) (int .page_size))) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tocsin.rules.extraEnv" -}}
{{- $seen := dict -}}
{{- range $at, $one := .Values.extraEnv -}}
{{- $where := printf "extraEnv[%d].name: %s" $at $one.name -}}
{{- if hasKey $seen $one.name -}}
{{- fail (printf "%s, which is there already; name each variable once" $where) -}}
{{- end -}}
{{- $_ := set $seen $one.name true -}}
{{- if regexMatch "^(PATH|HOME|HF_HUB_OFFLINE|TOCSIN_.*|LD_.*|PYTHON(PATH|HOME|STARTUP|USERBASE|PLATLIBDIR|BREAKPOINT)|KUBERNETES_SERVICE_(HOST|PORT)|OTEL_(SDK_DISABLED|TRACES_SAMPLER_ARG|EXPORTER_OTLP_(ENDPOINT|PROTOCOL))|REDIS_(PASSWORD|USERNAME)|RAY_(REDIS_ADDRESS|ADDRESS|IP|PORT|CLUSTER_NAME|CLUSTER_NAMESPACE|CLOUD_INSTANCE_ID|NODE_TYPE_NAME|enable_autoscaler_v2|USAGE_STATS_ENABLED)|FQ_RAY_IP|KUBERAY_GEN_RAY_START_CMD)$" $one.name -}}
{{- fail (printf "%s, which the chart, KubeRay or the image sets; use the value that stands for it, or leave it out" $where) -}}
{{- end -}}
{{- if and $one.value (default dict $one.secretKeyRef).name -}}
{{- fail (printf "%s has a value and a secretKeyRef, expected one of them; take one away" $where) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* On a live cluster only: whether KubeRay is there. `helm template` finds no namespace and asks nothing. */}}
{{- define "tocsin.rules.live" -}}
{{- $kind := ternary "RayService" "RayCluster" (eq .Values.topology "service") -}}
{{- if lookup "v1" "Namespace" "" .Release.Namespace -}}
{{- if not (.Capabilities.APIVersions.Has (printf "ray.io/v1/%s" $kind)) -}}
{{- fail (printf "cluster: it does not know %s (ray.io/v1), expected the operator KubeRay; install it first: docs/kubernetes.md" $kind) -}}
{{- end -}}
{{- end -}}
{{- end -}}
