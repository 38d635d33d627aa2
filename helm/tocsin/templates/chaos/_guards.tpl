{{/*
What is refused before anything reaches a cluster. The program asks all of it again when it runs,
because a lookup finds nothing under `helm template` and in GitOps.
*/}}
{{- define "tocsin.chaos.guards" -}}
{{- $chaos := .Values.chaos -}}
{{- range $name := list "kube-system" "kube-public" "kube-node-lease" -}}
{{- if not (has $name $chaos.protectedNamespaces) -}}
{{- fail (printf "chaos.protectedNamespaces: %s is missing, expected the three of Kubernetes among them; add it" $name) -}}
{{- end -}}
{{- end -}}
{{- if $chaos.enabled -}}

{{- if has .Release.Namespace $chaos.protectedNamespaces -}}
{{- fail (printf "chaos.enabled: namespace %s is one of chaos.protectedNamespaces, expected one that may be attacked; install the release into a namespace of its own" .Release.Namespace) -}}
{{- end -}}

{{- $demands := include "tocsin.chaos.demands" . | fromYaml -}}
{{- range $kind := $demands.faults -}}
{{- if not (has $kind $chaos.allowedFaults) -}}
{{- fail (printf "chaos.experiment: names the fault %s, allowed are %s; take it out of the experiment or add it to chaos.allowedFaults" $kind (join ", " $chaos.allowedFaults)) -}}
{{- end -}}
{{- end -}}
{{- if gt (float64 $demands.maxDurationSeconds) (float64 $chaos.maxDurationSeconds) -}}
{{- fail (printf "chaos.experiment: safety.max_duration is %v s, chaos.maxDurationSeconds allows %d s; shorten the experiment or raise the limit" $demands.maxDurationSeconds (int $chaos.maxDurationSeconds)) -}}
{{- end -}}

{{- if not $chaos.dryRun -}}
{{- $open := include "tocsin.chaos.targetGroups" . | splitList "," -}}
{{- range $name, $_ := .Values.workerGroups -}}
{{- if not (has $name $open) -}}
{{- fail (printf "chaos.dryRun: false, and worker group %s has chaosTarget false, expected true for every group: a run may strike any replica; set worker.chaosTarget" $name) -}}
{{- end -}}
{{- end -}}
{{- $namespace := lookup "v1" "Namespace" "" .Release.Namespace -}}
{{- if $namespace -}}
{{- $pair := splitn "=" 2 $chaos.namespaceLabel -}}
{{- $found := get (default dict $namespace.metadata.labels) $pair._0 -}}
{{- if ne (toString $found) $pair._1 -}}
{{- fail (printf "chaos.dryRun: false, and namespace %s has no label %s; its administrator allows chaos there with: kubectl label namespace %s %s" .Release.Namespace $chaos.namespaceLabel .Release.Namespace $chaos.namespaceLabel) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- if $chaos.stopOnAlert.enabled -}}
{{- if not .Values.alertmanager.url -}}
{{- fail "chaos.stopOnAlert.enabled: true, and alertmanager.url is empty, expected the address to watch; set alertmanager.url" -}}
{{- end -}}
{{- end -}}

{{- if include "tocsin.chaos.inHead" . -}}
{{- if ne .Values.topology "cluster" -}}
{{- fail (printf "chaos.kind: %s, and topology is %s, expected cluster: a RayService renames its cluster; set topology to cluster or chaos.kind to cronjob" $chaos.kind .Values.topology) -}}
{{- end -}}
{{- if or $chaos.publish.secretName $chaos.report.claimName -}}
{{- fail (printf "chaos.kind: %s runs in the head's pod, where chaos.publish.secretName and chaos.report.claimName have no effect; set chaos.kind to job or cronjob" $chaos.kind) -}}
{{- end -}}
{{- end -}}
{{- if eq $chaos.kind "raycronjob" -}}
{{- if not $chaos.rayCronJobGate -}}
{{- fail "chaos.kind: raycronjob is an alpha kind of KubeRay, off unless its operator runs with the gate RayCronJob; set chaos.rayCronJobGate when yours does" -}}
{{- end -}}
{{- if not $chaos.schedule -}}
{{- fail "chaos.schedule: empty, expected a cron schedule for chaos.kind raycronjob; set it" -}}
{{- end -}}
{{- end -}}
{{- include "tocsin.chaos.schedule" $chaos.schedule -}}
{{- if and $chaos.publish.secretName (not $chaos.publish.url) -}}
{{- fail (printf "chaos.publish.secretName: %s, and chaos.publish.url is empty, where no credentials are needed; set the url or take the Secret away" $chaos.publish.secretName) -}}
{{- end -}}
{{- if and $chaos.schedule (not (has $chaos.kind (list "cronjob" "raycronjob"))) -}}
{{- fail (printf "chaos.schedule: %q, and chaos.kind is %s, which has no schedule; set chaos.kind to cronjob or leave the schedule empty" $chaos.schedule $chaos.kind) -}}
{{- end -}}
{{- if and $chaos.runOnce (not (has $chaos.kind (list "job" "rayjob"))) -}}
{{- fail (printf "chaos.runOnce: %q, and chaos.kind is %s, which runs by its schedule; set chaos.kind to job or leave runOnce empty" $chaos.runOnce $chaos.kind) -}}
{{- end -}}

{{- if $chaos.admissionPolicy.enabled -}}
{{- if not (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "chaos.admissionPolicy.enabled: Kubernetes is %s, expected 1.30 or later for a ValidatingAdmissionPolicy; leave it off" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end -}}

{{- end -}}
{{- end -}}
