{{/* Refuses values that contradict each other. Takes the root context. */}}
{{- define "tocsin.monitoring.guards" -}}
{{- with .Values.monitoring -}}
{{- if and .podMonitor.enabled (gt (int .podMonitor.timeoutSeconds) (int .podMonitor.intervalSeconds)) -}}
{{- fail (printf "monitoring.podMonitor: timeoutSeconds is %d, expected at most intervalSeconds (%d); Prometheus refuses a scrape that may outlast its interval" (int .podMonitor.timeoutSeconds) (int .podMonitor.intervalSeconds)) -}}
{{- end -}}
{{- if and .podMonitor.enabled .prometheusRule.enabled (eq .prometheusRule.drills "running") (gt (mul 2 (int .podMonitor.intervalSeconds)) (int (include "tocsin.monitoring.announceSeconds" $))) -}}
{{- fail (printf "monitoring.podMonitor: intervalSeconds is %d, expected at most 15 with monitoring.prometheusRule.drills=running; rules would learn of an experiment after its first fault" (int .podMonitor.intervalSeconds)) -}}
{{- end -}}
{{- range $where, $labels := dict "labels" .labels "podMonitor.labels" .podMonitor.labels "prometheusRule.labels" .prometheusRule.labels "alertmanagerConfig.labels" .alertmanagerConfig.labels "dashboards.label" (dict .dashboards.label "") -}}
{{- range $key, $_ := $labels -}}
{{- if or (hasPrefix "app.kubernetes.io/" $key) (hasPrefix "helm.sh/" $key) -}}
{{- fail (printf "monitoring.%s: found %s, which the chart sets itself; expected another label" $where $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $number, $one := .podMonitor.metricRelabelings -}}
{{- if and (eq (default "replace" $one.action) "replace") (not $one.targetLabel) -}}
{{- fail (printf "monitoring.podMonitor.metricRelabelings[%d]: found replace without targetLabel, expected the label that is written" $number) -}}
{{- end -}}
{{- $regex := default "(.*)" $one.regex -}}
{{- /* An alternative of nothing matches the empty text, unless the expression before it is none. */ -}}
{{- if not (regexMatch (printf "%s|" $regex) "") -}}
{{- fail (printf "monitoring.podMonitor.metricRelabelings[%d].regex: %s is no regular expression, expected one in RE2 syntax; Prometheus would refuse its whole configuration" $number $regex) -}}
{{- else -}}
{{- range $label := list "__name__" "job" "namespace" "release" "instance" "component" -}}
{{- $matches := regexMatch (printf "^(?s:%s)$" $regex) $label -}}
{{- if or (and (eq $one.action "labeldrop") $matches) (and (eq $one.action "labelkeep") (not $matches)) (and (eq (default "replace" $one.action) "replace") (eq (default "" $one.targetLabel) $label)) -}}
{{- fail (printf "monitoring.podMonitor.metricRelabelings[%d]: %s takes the label %s away, by which rules and routes know the release; spare it" $number (default "replace" $one.action) $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (has $one.action (list "keep" "drop")) (not $one.sourceLabels) -}}
{{- fail (printf "monitoring.podMonitor.metricRelabelings[%d]: found %s without sourceLabels, expected the labels that are looked at" $number $one.action) -}}
{{- end -}}
{{- end -}}
{{- if and .relay.enabled .relay.url -}}
{{- fail "monitoring.relay: found enabled and url, expected one of them; enabled runs a relay here, url names one elsewhere" -}}
{{- end -}}
{{- if and .relay.enabled (not .relay.configSecret) -}}
{{- fail "monitoring.relay: found no configSecret, expected the Secret with relay.yaml; make it from the output of tocsin alerts example" -}}
{{- end -}}
{{- if and .relay.enabled (not .relay.tokenSecret.name) -}}
{{- fail "monitoring.relay: found no tokenSecret.name, expected the Secret with the relay's token; beyond loopback the relay takes nothing without one" -}}
{{- end -}}
{{- if .alertmanagerConfig.enabled -}}
{{- range $name := list "page" "ticket" -}}
{{- if not (include "tocsin.monitoring.reaches" (get $.Values.monitoring.alertmanagerConfig.receivers $name)) -}}
{{- fail (printf "monitoring.alertmanagerConfig.receivers.%s: found no way to anybody, expected at least one of relay, webhookSecret, pagerdutySecret, slack.urlSecret, email.to; these alerts would reach nobody" $name) -}}
{{- end -}}
{{- end -}}
{{- range $name, $channels := .alertmanagerConfig.receivers -}}
{{- if and $channels.relay (not (include "tocsin.monitoring.relay" $)) -}}
{{- fail (printf "monitoring.alertmanagerConfig.receivers.%s: relay is %s and there is no relay, expected monitoring.relay.enabled or monitoring.relay.url" $name $channels.relay) -}}
{{- end -}}
{{- if ne (empty $channels.email.username) (empty $channels.email.passwordSecret.name) -}}
{{- fail (printf "monitoring.alertmanagerConfig.receivers.%s.email: found one of username and passwordSecret.name, expected both or neither" $name) -}}
{{- end -}}
{{- end -}}
{{- if and .alertmanagerConfig.degrade.enabled (not $.Values.token.name) -}}
{{- fail "monitoring.alertmanagerConfig.degrade: found no token.name, expected the Secret with the service's token, which POST /degrade asks for; name it, or set degrade.enabled=false" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
