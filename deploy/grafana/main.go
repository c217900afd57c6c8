// Command grafana writes the dashboards for Grafana: scuda.json, scuda-exporter.json, scuda-pool.json. They have the
// classic format, which every version imports. With -check it only says whether they are up to date. Run it from the
// top folder: go run ./deploy/grafana.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
)

// board is a dashboard.
type board struct {
	file, uid, title string
	version          int
	marks            [][2]string // annotations: names and queries
	choices          []choice
	sections         []section
}

// choice is a variable, which limits all panels.
type choice struct{ name, label, query string }

var boards = []board{server, exporter, pool}

// panel is what a panel shows: queries with their legends.
type panel struct {
	title, kind, unit string
	says              string // what is to be seen, and what is wrong
	queries           [][2]string
	warn, bad         float64 // from here on it is yellow and red; 0: never
}

// section is a row of panels.
type section struct {
	title  string
	panels []panel
}

// pick limits a query to the chosen servers, or machines.
const pick = `instance=~"$instance"`

// quantile asks both forms of a histogram: Prometheus keeps the classic buckets or, with native histograms on, the
// native ones, and then the other half of the query is empty.
func quantile(q, metric, by, labels string) string {
	classic, native := `le`, ``
	if by != "" {
		classic, native = `le, `+by, ` by (`+by+`)`
	}
	return `histogram_quantile(` + q + `, sum by (` + classic + `) (rate(` + metric + `_bucket{` + labels +
		`}[$__rate_interval]))) or histogram_quantile(` + q + `, sum` + native + ` (rate(` + metric + `{` + labels +
		`}[$__rate_interval])))`
}

// spread is a whole histogram in both forms.
func spread(metric string) string { return spreadOf(metric, pick) }

func spreadOf(metric, labels string) string {
	return `sum by (le) (rate(` + metric + `_bucket{` + labels + `}[$__rate_interval])) or sum(rate(` + metric + `{` +
		labels + `}[$__rate_interval]))`
}

// times is how often a second something was observed, in both forms of its histogram.
func times(metric, by, labels string) string {
	return rateOf(metric+"_count", by, labels) + ` or histogram_count(` + rateOf(metric, by, labels) + `)`
}

func rate(metric, by string) string { return rateOf(metric, by, pick) }

func rateOf(metric, by, labels string) string {
	return `sum by (` + by + `) (rate(` + metric + `{` + labels + `}[$__rate_interval]))`
}

// orNone is 0 where nothing of it has happened yet.
func orNone(query string) string { return query + ` or vector(0)` }

type object = map[string]any

func variable(name, label, query string) object {
	return object{"name": name, "label": label, "type": "query", "query": object{"query": query, "refId": "A"},
		"definition": query,
		"datasource": source, "multi": true, "includeAll": true, "refresh": 2, "sort": 1,
		"current": object{"text": "All", "value": "$__all"}}
}

var source = object{"type": "prometheus", "uid": "${datasource}"}

// target is a query of a panel.
func target(kind string, i int, q [2]string) object {
	x := object{"refId": string(rune('A' + i)), "datasource": source, "expr": q[0], "legendFormat": q[1]}
	if kind == "heatmap" {
		x["format"] = "heatmap"
	}
	return x
}

// colours are the thresholds of a panel.
func (p *panel) colours() object {
	steps := []object{{"color": "green", "value": nil}}
	if p.warn > 0 {
		steps = append(steps, object{"color": "yellow", "value": p.warn})
	}
	if p.bad > 0 {
		steps = append(steps, object{"color": "red", "value": p.bad})
	}
	return object{"mode": "absolute", "steps": steps}
}

func (p *panel) object(id int, place object) object {
	var targets []object
	for i, q := range p.queries {
		targets = append(targets, target(p.kind, i, q))
	}
	defaults := object{"unit": p.unit, "min": 0, "thresholds": p.colours()}
	x := object{"id": id, "type": p.kind, "title": p.title, "description": p.says, "datasource": source,
		"targets": targets, "gridPos": place, "fieldConfig": object{"defaults": defaults, "overrides": []object{}}}
	switch {
	case p.kind == "heatmap":
		x["options"] = object{
			"calculate": false, "yAxis": object{"unit": p.unit}, "color": object{"mode": "scheme", "scheme": "Blues"},
		}
		x["fieldConfig"] = object{"defaults": object{}, "overrides": []object{}}
	case p.kind == "stat":
		defaults["color"] = object{"mode": "thresholds"}
		x["options"] = object{"colorMode": "value", "graphMode": "area", "reduceOptions": object{"calcs": []string{"last"}}}
	case p.warn+p.bad > 0:
		defaults["custom"] = object{"thresholdsStyle": object{"mode": "dashed"}}
	}
	return x
}

// annotations are marks in all panels.
func (b *board) annotations() object {
	list := []object{}
	for _, a := range b.marks {
		list = append(list, object{"name": a[0], "expr": a[1], "datasource": source, "enable": true, "iconColor": "red",
			"titleFormat": a[0], "textFormat": "{{instance}}", "step": "1m"})
	}
	return object{"list": list}
}

func (b *board) object() object {
	var panels []object
	id, y := 0, 0
	for _, s := range b.sections {
		id++
		panels = append(panels, object{
			"id": id, "type": "row", "title": s.title, "gridPos": object{"h": 1, "w": 24, "x": 0, "y": y}, "collapsed": false,
			"panels": []object{},
		})
		y++
		x, height, stats := 0, 0, 0
		for _, p := range s.panels {
			if p.kind == "stat" {
				stats++
			}
		}
		for i := range s.panels {
			id++
			w, h := 12, 8
			if s.panels[i].kind == "stat" { // they share the width
				w, h = 24*(i+1)/stats-24*i/stats, 4
			}
			if x+w > 24 {
				x, y = 0, y+height
			}
			if x == 0 && i == len(s.panels)-1 { // nothing comes beside it
				w = 24
			}
			panels = append(panels, s.panels[i].object(id, object{"h": h, "w": w, "x": x, "y": y}))
			x, height = x+w, h
		}
		y += height
	}
	variables := []object{
		{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
	}
	for _, c := range b.choices {
		variables = append(variables, variable(c.name, c.label, c.query))
	}
	return object{"uid": b.uid, "title": b.title, "tags": []string{"gpu", "scuda"}, "schemaVersion": 39,
		"version": b.version, "editable": true, "refresh": "10s", "annotations": b.annotations(),
		"time": object{"from": "now-1h", "to": "now"}, "panels": panels, "templating": object{"list": variables}}
}

func (b *board) text() ([]byte, error) {
	var t bytes.Buffer
	e := json.NewEncoder(&t)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err := e.Encode(b.object())
	return t.Bytes(), err
}

func run(check bool) error {
	for _, b := range boards {
		text, err := b.text()
		if err != nil {
			return err
		}
		if !check {
			if err := os.WriteFile(b.file, text, 0o644); err != nil {
				return err
			}
			continue
		}
		if old, err := os.ReadFile(b.file); err != nil || !bytes.Equal(old, text) {
			return fmt.Errorf("%s is not up to date; run go run ./deploy/grafana", b.file)
		}
	}
	return nil
}

func main() {
	check := flag.Bool("check", false, "only check that the files are up to date")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, "grafana:", err)
		os.Exit(1)
	}
}
