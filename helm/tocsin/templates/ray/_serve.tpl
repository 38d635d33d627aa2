{{/* The serve config, the one text that RayService, RayJob and the ConfigMap carry. */}}
{{- define "tocsin.serveConfig" -}}
proxy_location: EveryNode
http_options:
  host: "0.0.0.0"
  port: 8000
applications:
  - name: tocsin
    route_prefix: /
    import_path: tocsin.ray_jobs.serve_app:build
    args:
      {{- if eq .Values.model.source "pvc" }}
      model: /models
      name: {{ .Values.model.name | quote }}
      {{- else }}
      model: {{ .Values.model.name | quote }}
      {{- end }}
      {{- toYaml .Values.serve.args | nindent 6 }}
    deployments:
      - name: tocsin-worker
        num_replicas: {{ int .Values.serve.replicas }}
        max_ongoing_requests: {{ mul 4 (int .Values.serve.args.slots) }}
        ray_actor_options:
          num_cpus: {{ .Values.serve.numCpus }}
          num_gpus: {{ .Values.serve.numGpus }}
        user_config:
          {{- toYaml .Values.checker | nindent 10 }}
      - name: tocsin-gateway
        num_replicas: {{ int .Values.serve.gatewayReplicas }}
{{- end -}}

{{/* Name of the RayJob that deploys this serve config: another config is another job. */}}
{{- define "tocsin.serveJob" -}}
{{- $hash := include "tocsin.serveConfig" . | sha256sum | trunc 8 -}}
{{- printf "%s-%s" (include "tocsin.fullname" . | trunc 38 | trimSuffix "-") $hash -}}
{{- end -}}
