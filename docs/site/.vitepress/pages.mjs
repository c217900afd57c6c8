// What is on the site, and in which order: docs/README.md says it, for readers and for this file alike.
import { execFileSync } from 'node:child_process'
import { copyFileSync, mkdirSync, readFileSync, rmSync } from 'node:fs'
import { posix } from 'node:path'

const index = 'docs/README.md'

/** All pages, by their paths in the repository, with their paths on the site. */
export function pages(root) {
  const tracked = execFileSync('git', ['ls-files', '--cached', '--others', '--exclude-standard', '--', '*.md'],
    { cwd: root, encoding: 'utf8' }).trim().split('\n')
  return new Map(tracked.filter((path) => /^(README|CHANGELOG|CONTRIBUTING|SECURITY)\.md$/.test(path) ||
    path.startsWith('docs/') || path === 'perf/gpu/README.md').map((path) => [path, address(path)]))
}

/** Copies pages, and the pictures that they show, to a folder. */
export function copyPages(root, paths, folder) {
  rmSync(folder, { recursive: true, force: true })
  const copy = (path) => {
    mkdirSync(`${folder}/${posix.dirname(path)}`, { recursive: true })
    copyFileSync(`${root}/${path}`, `${folder}/${path}`)
  }
  for (const path of paths) {
    copy(path)
    for (const [, picture] of readFileSync(`${root}/${path}`, 'utf8').matchAll(/!\[[^\]]*\]\(([^):]+)\)/g)) {
      copy(posix.join(posix.dirname(path), picture))
    }
  }
}

function address(path) {
  switch (path) {
    case 'README.md': return 'index.md'
    case index: return 'contents.md'
    case 'SECURITY.md': return 'reporting.md' // docs/security.md has the other name
  }
  return path.replace(/^docs\//, '').replace(/README\.md$/, 'index.md').toLowerCase()
}

const capital = (s) => s[0].toUpperCase() + s.slice(1)

function links(cell, known) {
  return [...cell.matchAll(/\[([^\]]+)\]\(([^)#\s]+)[^)]*\)/g)].map(([, text, to]) => {
    const path = posix.join(posix.dirname(index), to)
    if (!known.has(path)) throw new Error(`${index} has a link to ${path}, which is no page`)
    return { text: capital(text.replaceAll('`', '')), path, link: '/' + known.get(path).replace(/(index)?\.md$/, '') }
  })
}

/**
 * The menu: a group for each heading of the index, an entry for each page in the first column of its table. Pages of
 * the second column, and those that lie in an entry's own folder, stand below it. A page that is in no group is an
 * error, so none is forgotten.
 */
export function menu(root, known) {
  const missing = new Set(known.keys())
  const groups = []
  const taken = new Set()
  const take = (list) => list.filter(({ path }) => {
    missing.delete(path)
    return !taken.has(path) && taken.add(path)
  })
  for (const line of readFileSync(`${root}/${index}`, 'utf8').split('\n')) {
    const heading = /^## ([^:]+)/.exec(line)
    if (heading) groups.push({ text: heading[1], collapsed: false, items: [] })
    const cells = line.split('|')
    if (groups.length === 0 || cells.length < 3) continue
    const entries = take(links(cells[1], known))
    const below = take(links(cells.slice(2).join('|'), known))
    for (const e of entries.filter((e) => /^docs\/.+\/README\.md$/.test(e.path))) {
      for (const path of [...missing].filter((p) => posix.dirname(p) === posix.dirname(e.path)).sort()) {
        const title = /^# (.+)$/m.exec(readFileSync(`${root}/${path}`, 'utf8'))[1].replaceAll('`', '')
        below.push({ text: title, path, link: '/' + known.get(path).replace(/\.md$/, '') })
        missing.delete(path)
      }
    }
    if (below.length > 0) Object.assign(entries.at(-1), { collapsed: true, items: below })
    groups.at(-1).items.push(...entries)
  }
  for (const path of ['README.md', index, 'SECURITY.md']) missing.delete(path)
  if (missing.size > 0) throw new Error(`${index} does not lead to ${[...missing].join(', ')}`)
  return groups
}
