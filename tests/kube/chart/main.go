// SPDX-License-Identifier: Apache-2.0

// Render a chart as `helm template` does, with the template functions that Helm adds to Go's: sprig's, include,
// toYaml and fail. Enough for a chart without dependencies, where Helm itself can't be had from a distribution.
//
//	chart CHART NAMESPACE RELEASE [VERSION] [API...] < values.json
//
// VERSION is the server's, v1.33.0 where none is given; each API is one that the server has, such as
// admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy.
// Values given on standard input replace the chart's own, key by key. Prints the documents; exit status 1 with a
// line on standard error where the chart refuses.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v3"
)

type apiVersions []string

// Has says whether the server has an API, as Helm's function of that name.
func (served apiVersions) Has(wanted string) bool {
	for _, one := range served {
		if one == wanted {
			return true
		}
	}
	return false
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

func load(path string) map[string]interface{} {
	content, err := os.ReadFile(path)
	check(err)
	document := map[string]interface{}{}
	check(yaml.Unmarshal(content, &document))
	return document
}

func merge(into, from map[string]interface{}) {
	for key, value := range from {
		above, isMap := value.(map[string]interface{})
		below, wasMap := into[key].(map[string]interface{})
		if isMap && wasMap {
			merge(below, above)
		} else {
			into[key] = value
		}
	}
}

func main() {
	chart, namespace, release := os.Args[1], os.Args[2], os.Args[3]
	values := load(filepath.Join(chart, "values.yaml"))
	given := map[string]interface{}{}
	check(json.NewDecoder(os.Stdin).Decode(&given))
	merge(values, given)
	about := load(filepath.Join(chart, "Chart.yaml"))

	root := template.New("chart").Option("missingkey=error")
	functions := sprig.TxtFuncMap()
	functions["toYaml"] = func(value interface{}) (string, error) {
		var out bytes.Buffer
		encoder := yaml.NewEncoder(&out)
		encoder.SetIndent(2)
		err := encoder.Encode(value)
		return strings.TrimSuffix(out.String(), "\n"), err
	}
	functions["include"] = func(name string, data interface{}) (string, error) {
		var out bytes.Buffer
		err := root.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	functions["fail"] = func(message string) (string, error) { return "", fmt.Errorf("%s", message) }
	root.Funcs(functions)

	paths, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	check(err)
	sort.Strings(paths)
	for _, path := range paths {
		content, err := os.ReadFile(path)
		check(err)
		_, err = root.New(path).Parse(string(content))
		check(err)
	}
	version, apis := "v1.33.0", apiVersions(os.Args[4:])
	if len(apis) > 0 && !strings.Contains(apis[0], "/") {
		version, apis = apis[0], apis[1:]
	}
	data := map[string]interface{}{
		"Values":       values,
		"Chart":        map[string]interface{}{"Name": about["name"], "Version": about["version"], "AppVersion": about["appVersion"]},
		"Capabilities": map[string]interface{}{
			"APIVersions": apis,
			"KubeVersion": map[string]interface{}{"Version": version},
		},
		"Release":      map[string]interface{}{"Name": release, "Namespace": namespace, "Service": "Helm"},
	}
	for _, path := range paths {
		if strings.HasPrefix(filepath.Base(path), "_") {
			continue
		}
		var out bytes.Buffer
		check(root.ExecuteTemplate(&out, path, data))
		fmt.Println("---")
		fmt.Println(out.String())
	}
}
