{{/*
With `pipelines`, each template renders one object for each entry. Its values `$values` are those of the chart with the
entry's merged into them; without `pipelines` there is one entry without a name.
*/}}

{{- define "walrelay.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "walrelay.release" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "walrelay.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "walrelay.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The name of one relay's objects. Takes a list: the root, the pipeline's name. */}}
{{- define "walrelay.fullname" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- include "walrelay.release" $root }}{{ with $name }}-{{ . }}{{ end -}}
{{- end -}}

{{/* Labels by which the objects of a release are found. */}}
{{- define "walrelay.releaseSelector" -}}
app.kubernetes.io/name: {{ include "walrelay.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels by which the pods of one relay are found. Takes a list: the root, the pipeline's name. */}}
{{- define "walrelay.selector" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{ include "walrelay.releaseSelector" $root }}
app.kubernetes.io/component: {{ default "relay" $name }}
{{- end -}}

{{/* Labels of all objects. */}}
{{- define "walrelay.releaseLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "walrelay.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "walrelay.release" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "walrelay.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{ end -}}
{{- end -}}
{{- end -}}

{{/*
What `run` and `check` of a relay have in common: arguments, environment, mounts.
Takes a dict: root, name (of the pipeline), values.
*/}}
{{- define "walrelay.options" -}}
{{- $values := .values -}}
{{- $fullname := include "walrelay.fullname" (list .root .name) -}}
{{- $namespace := .root.Release.Namespace -}}
{{- $hosts := concat (list $fullname (printf "%s.%s" $fullname $namespace) (printf "%s.%s.svc" $fullname $namespace)) $values.http.hosts -}}
- --config=/etc/walrelay/walrelay.toml
- --set=http.listen={{ $values.http.address }}:{{ $values.http.port }}
{{- if $values.http.tokenSecret }}
- --set=http.token_file=/run/secrets/walrelay-http/token
{{- else }}
- --set=http.allow_anonymous=true
- {{ printf "--set=http.hosts=%s" (toJson $hosts) | squote }}
{{- end }}
{{- if $values.http.tlsSecret }}
- --set=http.tls.certificate_file=/run/secrets/walrelay-http-tls/tls.crt
- --set=http.tls.key_file=/run/secrets/walrelay-http-tls/tls.key
{{- end }}
{{- end -}}

{{- define "walrelay.env" -}}
{{- range $variable, $secret := .secretEnv }}
- name: {{ $variable }}
  valueFrom:
    secretKeyRef:
      name: {{ $secret.name }}
      key: {{ $secret.key }}
{{- end }}
{{- with .extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "walrelay.mounts" -}}
- name: config
  mountPath: /etc/walrelay
  readOnly: true
{{- range $folder, $_ := .secretFiles }}
- name: secret-{{ $folder }}
  mountPath: /run/secrets/{{ $folder }}
  readOnly: true
{{- end }}
{{- if .http.tokenSecret }}
- name: http-token
  mountPath: /run/secrets/walrelay-http
  readOnly: true
{{- end }}
{{- if .http.tlsSecret }}
- name: http-tls
  mountPath: /run/secrets/walrelay-http-tls
  readOnly: true
{{- end }}
{{- with .extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Takes a list: the full name, the values. The files of secrets are root's, and readable by fsGroup. */}}
{{- define "walrelay.volumes" -}}
{{- $fullname := index . 0 -}}
{{- $values := index . 1 -}}
- name: config
  configMap:
    name: {{ $fullname }}
{{- range $folder, $secret := $values.secretFiles }}
- name: secret-{{ $folder }}
  secret:
    secretName: {{ $secret.name }}
    defaultMode: 0440
    {{- with $secret.keys }}
    items:
      {{- range . }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
    {{- end }}
{{- end }}
{{- with $values.http.tokenSecret }}
- name: http-token
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with $values.http.tlsSecret }}
- name: http-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with $values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What the schema of the values cannot say. Takes a list: the pipeline's name, the values. */}}
{{- define "walrelay.refuse" -}}
{{- $values := index . 1 -}}
{{- $place := ternary (printf "pipelines.%s." (index . 0)) "" (ne (index . 0) "") -}}
{{- if not $values.config -}}
{{- fail (printf "set %sconfig to the text of a walrelay.toml" $place) -}}
{{- end -}}
{{- if and $values.state.enabled (hasPrefix "ReadWriteOnce" $values.state.accessMode) (gt (int $values.replicas) 1) -}}
{{- fail (printf "%sstate.accessMode %s fits one pod: set %sreplicas to 1, or use ReadWriteMany" $place $values.state.accessMode $place) -}}
{{- end -}}
{{- end -}}
