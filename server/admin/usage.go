package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"scuda.dev/scuda/server/usage"
)

// ErrNoUsage is a server that writes no usage log.
var ErrNoUsage = errors.New("the server keeps no usage log")

// Usage is what sessions have used of a server, as its usage log says.
type Usage struct {
	Sums []usage.Sum `json:"usage"`
	Bad  int         `json:"bad_lines"` // of the log, that are no records
}

// usageQuery reads what GET /v1/usage asks for: since when, and by what it is added up.
func usageQuery(text string) (since time.Time, by string, err error) {
	q, err := url.ParseQuery(text)
	if err != nil {
		return since, "", err
	}
	by = usage.By()[0]
	for name, values := range q {
		switch {
		case len(values) != 1:
			return since, "", fmt.Errorf("%.20q is given %d times", name, len(values))
		case name == "by" && slices.Contains(usage.By(), values[0]):
			by = values[0]
		case name == "by":
			return since, "", fmt.Errorf("by %.40q", values[0])
		case name == "since":
			if since, err = time.Parse(time.RFC3339, values[0]); err != nil {
				return since, "", fmt.Errorf("since %.40q", values[0])
			}
		default:
			return since, "", fmt.Errorf("nothing is called %.20q", name)
		}
	}
	return since, by, nil
}

func (h *handler) usage(w http.ResponseWriter, r *http.Request, who Who) {
	since, by, err := usageQuery(r.URL.RawQuery)
	if err != nil {
		refuse(w, http.StatusBadRequest, fmt.Sprintf("the question is not what is expected: %.200v", err),
			"ask for since=2026-01-31T00:00:00Z, and for by="+strings.Join(usage.By(), ", "))
		return
	}
	switch u, err := h.server.Usage(r.Context(), who, since, by); {
	case errors.Is(err, ErrNoUsage):
		refuse(w, http.StatusNotFound, err.Error(), "start it with --usage-log FILE")
	case err != nil:
		refuse(w, http.StatusInternalServerError, err.Error(), "look into the server's log")
	default:
		answer(w, u)
	}
}

// Usage asks what was used since a moment, added up by one of [usage.By]. The error is [ErrNoUsage] where the server
// does not know.
func (c *Client) Usage(ctx context.Context, since time.Time, by string) (*Usage, error) {
	q := url.Values{"since": {since.Format(time.RFC3339Nano)}, "by": {by}}
	var u Usage
	err := c.ask(ctx, http.MethodGet, "/v1/usage?"+q.Encode(), nil, &u)
	if f, ok := errors.AsType[*Fault](err); ok && f.status == http.StatusNotFound {
		return nil, fmt.Errorf("%w; %s", ErrNoUsage, f.Remedy)
	}
	return &u, err
}
