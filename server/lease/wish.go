package lease

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// GPU is one that a server has.
type GPU struct{ UUID, Name string }

// Wish says which GPUs somebody wants: these, or so many, of a kind or of any. The zero value is all that there are.
type Wish struct {
	UUIDs []string
	Kind  string // a part of the product's name, whatever the case of its letters
	Count int
}

// ParseWish reads UUIDs (or beginnings of them) with commas between them, a number, KIND or KIND:NUMBER.
func ParseWish(s string) (w Wish, err error) {
	bad := func(why string) (Wish, error) {
		return Wish{}, fmt.Errorf("%w: gpus: %.60q %s; write UUIDs with commas between them, a number, KIND or KIND:NUMBER",
			ErrTerms, s, why)
	}
	number := func(text string) bool {
		n, err := strconv.Atoi(text)
		w.Count = n
		return err == nil && n >= 1 && n <= MostGPUs
	}
	kind, count, two := strings.Cut(s, ":")
	switch {
	case s == "":
		return Wish{}, nil
	case strings.HasPrefix(s, "GPU-"), strings.HasPrefix(s, "MIG-"):
		w.UUIDs = strings.Split(s, ",")
		if len(w.UUIDs) > MostGPUs {
			return bad("are too many")
		}
		return w, nil
	case two:
		if kind = strings.TrimSpace(kind); kind == "" || !number(count) {
			return bad("is no kind with a number")
		}
		w.Kind = kind
	case number(s):
	case strings.Trim(s, "0123456789-") == "" || strings.Contains(s, ","):
		return bad("is neither")
	default:
		w.Kind, w.Count = s, 1
	}
	return w, nil
}

// Choose gives the UUIDs of the GPUs that a wish means; none stands for all. Of those that do it takes the ones of
// which the least has been leased, as taken says.
func (w Wish) Choose(have []GPU, taken map[string]uint64) ([]string, error) {
	if len(w.UUIDs) > 0 {
		return byUUID(w.UUIDs, have)
	}
	if w.Count == 0 && w.Kind == "" {
		return nil, nil
	}
	var fit []string
	for _, g := range have {
		if strings.Contains(strings.ToLower(g.Name), strings.ToLower(w.Kind)) {
			fit = append(fit, g.UUID)
		}
	}
	if len(fit) < w.Count {
		of := "GPUs"
		if w.Kind != "" {
			of = fmt.Sprintf("GPUs of the kind %.40q", w.Kind)
		}
		return nil, fmt.Errorf("%w: the server has %d %s, and %d are wanted; scuda info lists them", ErrTerms, len(fit), of,
			w.Count)
	}
	slices.SortStableFunc(fit, func(a, b string) int { return cmp.Compare(taken[a], taken[b]) })
	return fit[:w.Count], nil
}

// byUUID finds GPUs by their UUIDs, or by beginnings that only one has.
func byUUID(names []string, have []GPU) (list []string, err error) {
	for _, name := range names {
		var found []string
		for _, g := range have {
			if strings.HasPrefix(g.UUID, name) && name != "" {
				found = append(found, g.UUID)
			}
		}
		switch {
		case len(found) == 0:
			return nil, fmt.Errorf("%w: the server has no GPU %.60q; scuda info lists them", ErrTerms, name)
		case len(found) > 1:
			return nil, fmt.Errorf("%w: %d GPUs begin with %.60q; write more of it", ErrTerms, len(found), name)
		case slices.Contains(list, found[0]):
			return nil, fmt.Errorf("%w: GPU %.60q stands there twice", ErrTerms, name)
		}
		list = append(list, found[0])
	}
	return list, nil
}
