// The site is the repository's own Markdown: `make site` copies this folder to build/site, where the generator and its
// packages lie, and builds from there.
import { readFileSync } from 'node:fs'
import { posix, relative, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { copyPages, menu, pages } from './pages.mjs'

const here = fileURLToPath(new URL('.', import.meta.url))
const root = resolve(here, '../../..')
const known = pages(root)
const copies = resolve(here, '../pages') // the generator looks for its packages in the folders above a page
copyPages(root, known.keys(), copies)
const version = readFileSync(`${root}/VERSION`, 'utf8').trim()

// GitHub's names of headings, so that a link works in both places.
const slugify = (s) => s.toLowerCase().replace(/[^\p{L}\p{N}\p{M} _-]/gu, '').replaceAll(' ', '-')

// Links between pages become the site's. One to a file that is no page has nothing to lead to: its text stays.
function siteLinks(md) {
  md.core.ruler.push('site_links', (state) => {
    const folder = posix.dirname(relative(copies, state.env.realPath ?? state.env.path))
    for (const { children } of state.tokens.filter((t) => t.type === 'inline')) {
      let open = true
      for (const token of children) {
        if (token.type === 'link_open') open = lead(token, folder)
        if (token.type.startsWith('link_') && !open) token.hidden = true
      }
      // A hidden token is still written by the rule for its type.
      for (let i = children.length - 1; i >= 0; i--) if (children[i].hidden) children.splice(i, 1)
    }
  })
}

// Says whether a link leads anywhere on the site.
function lead(token, folder) {
  const [, path, anchor] = /^([^#]*)(#.*)?$/.exec(token.attrGet('href'))
  if (path === '' || /^[a-z]+:/.test(path)) return true
  const page = known.get(posix.join(folder, path))
  if (page) token.attrSet('href', '/' + page + (anchor ?? ''))
  return page !== undefined
}

// Indented code looks as fenced code does, and can be copied as easily.
function oneCode(md) {
  md.renderer.rules.code_block = (...all) => md.renderer.rules.fence(...all)
}

export default {
  title: 'scuda',
  description: 'Programs for an NVIDIA GPU run unmodified on a machine without one.',
  lang: 'en',
  srcDir: copies,
  rewrites: Object.fromEntries(known),
  outDir: resolve(here, '../html'),
  cacheDir: resolve(here, '../cache'),
  cleanUrls: false,
  markdown: {
    anchor: { slugify },
    config(md) {
      siteLinks(md)
      oneCode(md)
    },
  },
  head: [['link', { rel: 'icon', href: 'data:,' }]],
  themeConfig: {
    search: {
      provider: 'local',
      options: {
        miniSearch: {
          searchOptions: {
            combineWith: 'AND',
            // Who searches has a question: answers first, the history last.
            boostDocument: (page) => (page.includes('changelog') ? 0.2 : page.includes('troubleshooting') ? 3 : 1),
          },
        },
      },
    },
    outline: [2, 3],
    nav: [
      { text: 'Documentation', link: '/contents' },
      { text: 'Install', link: '/install' },
      { text: 'Troubleshooting', link: '/troubleshooting' },
      { text: version, link: '/changelog' },
    ],
    sidebar: menu(root, known),
    footer: { message: 'scuda is free software under the Apache licence 2.0.' },
  },
}
