{{/* One pod of `helm test`. Takes a dict: root, name, weight, arguments. */}}
{{- define "tocsin.test.pod" -}}
{{- $test := .root.Values.test -}}
apiVersion: v1
kind: Pod
metadata:
  name: {{ printf "%s-%s" (include "tocsin.serviceAccount.test" .root) .name | quote }}
  namespace: {{ .root.Release.Namespace | quote }}
  labels:
    {{- include "tocsin.selectorLabels" (dict "root" .root "component" "test") | nindent 4 }}
  annotations:
    helm.sh/hook: test
    helm.sh/hook-weight: {{ .weight | quote }}
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
spec:
  serviceAccountName: {{ include "tocsin.serviceAccount.test" .root | quote }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  restartPolicy: Never
  activeDeadlineSeconds: {{ add (int $test.withinSeconds) 300 }}
  securityContext:
    {{- include "tocsin.podSecurityContext" .root | nindent 4 }}
  {{- with include "tocsin.pullSecrets" .root | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "tocsin.placement" (dict "place" $test) | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  containers:
    - name: test
      image: {{ include "tocsin.image" .root | quote }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      command:
        - tocsin
      args:
        {{- toYaml .arguments | nindent 8 }}
      env:
        {{- include "tocsin.env" .root | nindent 8 }}
      resources:
        {{- include "tocsin.resources" (dict "resources" $test.resources) | nindent 8 }}
      securityContext:
        {{- include "tocsin.containerSecurityContext" .root | nindent 8 }}
      volumeMounts:
        - name: tmp
          mountPath: /tmp
        - name: state
          mountPath: /var/lib/tocsin
        - name: chaos-policy
          mountPath: /etc/tocsin/chaos
          readOnly: true
  # No model: a test must not wait for a volume that another node holds.
  volumes:
    - name: tmp
      emptyDir:
        sizeLimit: 1Gi
    - name: state
      emptyDir:
        sizeLimit: 1Gi
    - name: chaos-policy
      configMap:
        name: {{ include "tocsin.configMap.chaos" .root | quote }}
{{- end -}}
